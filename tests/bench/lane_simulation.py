"""One lane in virtual time: a real policy, requests that arrive, steps that take what they cost.

The clock is a number; nothing sleeps and no model runs (each token sampled is the same). One step
is in flight at a time for every policy, so that overlap, which `three_queue` does not have, is
counted for nobody. Knows nothing about any policy. Invariant: each request gets exactly the tokens
that the trace gives it, whatever happens to it on the way.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import mean

from scheduler_svc.core.engine_state import MakePolicy
from scheduler_svc.core.journal import Journal
from scheduler_svc.core.request import Request
from scheduler_svc.core.scheduler_config import SchedulerConfig
from segue.types import Finish, Generation, ModelRunnerOutput, SchedulerOutput, StepKey
from tests.bench.closed_loop import percentile
from tests.bench.cost_model import CostModel
from tests.bench.request_trace import EOS, Load

GENERATION = Generation(1, 1)
TOKEN = 7
LANE = "e0"


@dataclass(slots=True)
class Outcome:
    """Of one run; times in seconds of the virtual clock."""

    elapsed_s: float = 0.0
    num_steps: int = 0
    num_output_tokens: int = 0
    num_computed_tokens: int = 0
    num_computed_again: int = 0
    num_preemptions: int = 0
    num_swapped_out_blocks: int = 0
    num_swapped_in_blocks: int = 0
    copying_s: float = 0.0
    running: list[int] = field(default_factory=list[int])  # rows of each step
    first_token_s: dict[str, float] = field(default_factory=dict[str, float])
    latency_s: dict[str, float] = field(default_factory=dict[str, float])

    @property
    def tokens_per_s(self) -> float:
        return self.num_output_tokens / self.elapsed_s

    @property
    def mean_running(self) -> float:
        return mean(self.running)

    @property
    def p99_first_token_s(self) -> float:
        return percentile(list(self.first_token_s.values()), 0.99)

    @property
    def p99_latency_s(self) -> float:
        return percentile(list(self.latency_s.values()), 0.99)


class LaneSimulation:
    def __init__(
        self,
        make_policy: MakePolicy,
        config: SchedulerConfig,
        costs: CostModel,
        load: Load,
    ) -> None:
        self.requests: dict[str, Request] = {}
        self.outcome = Outcome()
        self.clock_s = 0.0
        self._journal = Journal()
        self.policy = make_policy(LANE, config, self.requests, self._journal)
        self._block_size = config.block_size
        self._costs = costs
        self._lengths = load.num_output_tokens
        self._to_come = sorted(load.submissions, key=lambda one: one.arrival_unix_ms, reverse=True)

    def run(self) -> Outcome:
        while self.has_work():
            self.advance()
        outcome = self.outcome
        outcome.elapsed_s = self.clock_s
        requests = self.requests.values()
        outcome.num_output_tokens = sum(request.num_output_tokens for request in requests)
        outcome.num_preemptions = sum(request.num_preemptions for request in requests)
        # What a request needs computed: all of its tokens but the last.
        num_needed = sum(request.num_tokens - 1 for request in requests)
        outcome.num_computed_again = outcome.num_computed_tokens - num_needed
        return outcome

    def has_work(self) -> bool:
        return bool(self._to_come) or self.policy.has_work()

    def advance(self) -> SchedulerOutput:
        """One step; before it, time passes until there is something to do."""
        if not self.policy.has_work():
            self.clock_s = max(self.clock_s, self._to_come[-1].arrival_unix_ms / 1000)
        self._let_arrive()
        return self._step()

    def _let_arrive(self) -> None:
        while self._to_come and self._to_come[-1].arrival_unix_ms <= self.clock_s * 1000:
            request = Request(self._to_come.pop(), block_size=self._block_size)
            request.lane_id = LANE
            self.requests[request.request_id] = request
            self.policy.add_request(request)

    def _step(self) -> SchedulerOutput:
        outcome = self.outcome
        plan = self.policy.schedule(StepKey(outcome.num_steps + 1, 1), GENERATION)
        assert not self.policy.take_ignored(), "a request can never be served here"
        num_tokens = plan.total_num_scheduled_tokens
        if num_tokens:
            self._pass_time(plan, num_tokens)
        for request_id, finish in self._answer(plan).items():
            since_s = self.requests[request_id].submission.arrival_unix_ms / 1000
            outcome.first_token_s.setdefault(request_id, self.clock_s - since_s)
            if finish is not None:
                outcome.latency_s[request_id] = self.clock_s - since_s
        self._journal.clear()
        return plan

    def _answer(self, plan: SchedulerOutput) -> dict[str, Finish | None]:
        indices = plan.output_indices
        tokens = [
            [EOS if index + 1 == self._lengths[request_id] else TOKEN]
            for request_id, index in indices.items()
        ]
        result = ModelRunnerOutput(
            plan.step_id, GENERATION, list(indices), list(indices.values()), tokens
        )
        return self.policy.update_from_output(plan, result, round(self.clock_s * 1000))

    def _pass_time(self, plan: SchedulerOutput, num_tokens: int) -> None:
        outcome, requests = self.outcome, self.requests
        # A plan counts as done: what has been computed by now is what its rows read.
        num_context = sum(requests[one].num_computed_tokens for one in plan.num_scheduled_tokens)
        num_copied = len(plan.swap_out) + len(plan.swap_in)
        self.clock_s += self._costs.step_s(num_tokens, num_context, num_copied)
        outcome.num_steps += 1
        outcome.num_computed_tokens += num_tokens
        outcome.num_swapped_out_blocks += len(plan.swap_out)
        outcome.num_swapped_in_blocks += len(plan.swap_in)
        outcome.copying_s += num_copied * self._costs.swapped_block_s
        outcome.running.append(len(plan.num_scheduled_tokens))
