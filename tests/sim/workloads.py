"""What clients ask for: shared prefixes, identical prompts, bursts, choices, priorities.

Knows nothing about faults. Invariant: a submission is complete, so submitting it again means the
same (rule 5).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from segue.types import SamplingParams, Submission
from tests.sim.gateway import Client

if TYPE_CHECKING:
    from tests.sim.cluster import Cluster


class Workload:
    """A handful of calls, at times drawn when the world begins."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.rng = cluster.world.rng
        self.clients: list[Client] = []
        self.num_calls_left = 0
        block_size = cluster.settings.engine.scheduler.block_size
        self._bases = [self._tokens(block_size * self.rng.randrange(1, 5)) for _ in range(3)]

    def plan(self, num_calls: int, last_ms: int) -> None:
        self.num_calls_left = num_calls
        when = 200
        for _ in range(num_calls):
            if self.rng.random() < 0.6:  # else in the same burst
                when = self.rng.randrange(200, last_ms)
            self.cluster.world.after(when, None, self._call)

    def _tokens(self, count: int) -> tuple[int, ...]:
        vocab = self.cluster.settings.vocab_size
        return tuple(self.rng.randrange(vocab) for _ in range(count))

    def _prompt(self) -> tuple[int, ...]:
        """Often exactly some blocks of a shared prefix, often with a tail of its own."""
        config = self.cluster.settings.engine.scheduler
        base = self.rng.choice(self._bases)
        kind = self.rng.random()
        if kind < 0.35:
            prompt = base
        elif kind < 0.75:
            prompt = base + self._tokens(self.rng.randrange(1, 8))
        else:
            prompt = self._tokens(self.rng.randrange(1, 20))
        return prompt[: config.max_model_len - 2]

    def _call(self) -> None:
        self.num_calls_left -= 1
        rng, world = self.rng, self.cluster.world
        gateways = [g for g in self.cluster.gateways if g.life.is_alive and not g.life.is_stopped]
        if not gateways:
            return
        gateway = rng.choice(gateways)
        prompt = self._prompt()
        number = len(self.clients)
        num_choices = rng.choice((1, 1, 1, 1, 2, 3))
        priority = rng.randrange(3)
        is_resumable = rng.random() < 0.4
        params = SamplingParams(
            seed=rng.randrange(1 << 30),
            max_tokens=rng.randrange(1, 22),
            eos_token_id=rng.choice((None, 0)),
            stop_token_ids=rng.choice(((), (), (1,))),
            num_logprobs=rng.choice((None, None, 0)),
        )
        clients = [
            Client(
                Submission(
                    f"r{number}.{choice}",
                    prompt,
                    params,
                    arrival_unix_ms=world.now,
                    choice=choice,
                    group_id=f"r{number}",
                    group_size=num_choices,
                    priority=priority,
                    cache_salt=rng.choice(("", "", "salt")),
                    skip_reading_prefix_cache=rng.random() < 0.1,
                    is_resumable=is_resumable,
                ),
                gateway,
            )
            for choice in range(num_choices)
        ]
        self.clients += clients
        gateway.submit(clients)
