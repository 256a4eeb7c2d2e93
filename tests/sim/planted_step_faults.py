"""Faults of steps, generations and executors, to be planted (PROTOCOL.md section 7).

Each function takes one rule away from production code or from a fake. Knows nothing about seeds.
Invariant: what a plant changes is undone by the `MonkeyPatch` that it was given.
"""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest

from executor_svc.step_ledger import StepLedger
from scheduler_svc.core.events import ExecutorConnected, LaneOpened
from scheduler_svc.core.generations import Generations
from scheduler_svc.core.lane import Lane, LaneStatus
from scheduler_svc.core.unified.scheduler import UnifiedScheduler
from segue.types import Generation, ModelRunnerOutput, SchedulerOutput
from tests.sim import messages
from tests.sim.executor_links import ExecutorLinks
from tests.sim.settings import Settings, draw_settings
from tests.sim.token_kv_executor import ExecutorProcess, StepError, TokenKV


def no_executor_ahead_check(patch: pytest.MonkeyPatch) -> None:
    """H1: the same process in the same generation is believed, whatever it ran."""

    def holds(lane: Lane, hello: ExecutorConnected) -> bool:
        is_same = (hello.generation, hello.incarnation_id) == (lane.generation, lane.incarnation_id)
        return lane.status is not LaneStatus.LOST and is_same

    patch.setattr(Lane, "holds_what_it_claims", holds)


def no_generation(patch: pytest.MonkeyPatch) -> None:
    """H2: what is claimed about a process's memory holds as long as the process."""
    original = Generations._open_new_generation

    def open_same(self: Generations, lane: Lane, event: ExecutorConnected) -> None:
        before = lane.generation if event.incarnation_id == lane.incarnation_id else None
        original(self, lane, event)
        lane.generation = before or lane.generation

    patch.setattr(Generations, "_open_new_generation", open_same)


def bare_generation_counter(patch: pytest.MonkeyPatch) -> None:
    """H2: a generation is a number; Redis may hand it out twice."""
    original = Generations._open_new_generation

    def open_bare(self: Generations, lane: Lane, event: ExecutorConnected) -> None:
        original(self, lane, event)
        assert lane.generation is not None
        lane.generation = Generation(1, lane.generation.number)

    patch.setattr(Generations, "_open_new_generation", open_bare)


def failed_step_goes_on(patch: pytest.MonkeyPatch) -> None:
    """H3: a failed step has an empty result, and the next one runs."""
    original = ExecutorProcess._execute

    def execute(self: ExecutorProcess, plan: SchedulerOutput) -> ModelRunnerOutput:
        try:
            return original(self, plan)
        except StepError:
            return ModelRunnerOutput(plan.step_id, plan.generation)

    patch.setattr(ExecutorProcess, "_execute", execute)


def table_of_the_stream(patch: pytest.MonkeyPatch) -> None:
    """H4: the executor's request table lives as long as the stream."""
    original = ExecutorProcess._open

    def open_empty(self: ExecutorProcess, stream: Any, message: messages.Open) -> None:
        self.kv.table = {}
        original(self, stream, message)

    patch.setattr(ExecutorProcess, "_open", open_empty)


def one_kept_result(patch: pytest.MonkeyPatch) -> None:
    """H5: only the last result is kept, though two steps may be in flight."""

    def first_kept(self: StepLedger) -> int:
        return self._last_step.step_id if self._last_step is not None else 0

    patch.setattr(StepLedger, "_first_kept_step_id", first_kept)


def stale_output_not_cancelled(patch: pytest.MonkeyPatch) -> None:
    """H8: the tokens of a step that will never answer stay in flight."""
    patch.setattr(UnifiedScheduler, "cancel_step", lambda self, plan: None)


def micro_batches(patch: pytest.MonkeyPatch) -> None:
    """H21: a row reads before the rows behind it are written."""
    original = TokenKV._write

    def write_and_read(self: TokenKV, request_id: str, num_tokens: int) -> None:
        original(self, request_id, num_tokens)
        self._read(request_id)

    def execute(self: TokenKV, plan: SchedulerOutput, sample: Any, draft: Any) -> ModelRunnerOutput:
        backwards = dict(reversed(plan.num_scheduled_tokens.items()))
        return original_execute(self, replace(plan, num_scheduled_tokens=backwards), sample, draft)

    original_execute = TokenKV.execute
    patch.setattr(TokenKV, "_write", write_and_read)
    patch.setattr(TokenKV, "execute", execute)


def victims_keep_their_hashes(patch: pytest.MonkeyPatch) -> None:
    """H20: vLLM's PRIORITY rule as it is; the settings of `crowded` say so."""
    del patch


def crowded(rng: random.Random) -> Settings:
    """Few blocks, prompts in small chunks, and victims that are soon admitted again."""
    settings = draw_settings(rng)
    scheduler = replace(
        settings.engine.scheduler,
        strict=True,
        policy="priority",
        enable_prefix_caching=True,
        block_size=2,
        max_model_len=40,
        max_num_seqs=rng.choice((3, 6)),
        max_num_batched_tokens=rng.choice((12, 24)),
        long_prefill_token_threshold=rng.choice((3, 5)),
        scheduler_reserve_full_isl=False,
        watermark=0.0,
    )
    engine = replace(settings.engine, scheduler=scheduler)
    return replace(settings, engine=engine, num_blocks=(22,) * settings.num_executors)


def open_on_any_stream(patch: pytest.MonkeyPatch) -> None:
    """An answer to one hello goes out on whatever stream is there now."""
    original = ExecutorLinks.opened

    def opened(self: ExecutorLinks, reply: LaneOpened) -> None:
        link = self.streams.get(reply.executor_id)
        number = link.number if link is not None else 0
        original(self, replace(reply, connection=number))

    patch.setattr(ExecutorLinks, "opened", opened)
