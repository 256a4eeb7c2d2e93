"""Faults of commits, epochs and gateways, and the list of all that the simulation has to catch.

Each function takes one rule away from production code or from a fake. Knows nothing about seeds.
Invariant: what a plant changes is undone by the `pytest.MonkeyPatch` that it was given.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from executor_svc.step_ledger import StepLedger
from scheduler_svc.core import request_row
from scheduler_svc.core.events import RequestAborted
from scheduler_svc.core.intake import Intake
from scheduler_svc.core.request import Request
from scheduler_svc.core.request_queue import FCFSRequestQueue
from scheduler_svc.core.rows import Commit
from scheduler_svc.core.snapshot import Snapshot
from scheduler_svc.sessions import NewOutputs
from scheduler_svc.store.memory_store import MemoryState
from scheduler_svc.store.state_store import CommitAnswer, Outcome, StoreUnavailable
from segue.types import Attachment, Submission
from tests.sim.gateway import GatewayProcess, Session
from tests.sim.planted_step_faults import (
    bare_generation_counter,
    crowded,
    failed_step_goes_on,
    micro_batches,
    no_executor_ahead_check,
    no_generation,
    one_kept_result,
    open_on_any_stream,
    stale_output_not_cancelled,
    table_of_the_stream,
    victims_keep_their_hashes,
)
from tests.sim.scheduler import Leader
from tests.sim.settings import LEASE_TTL_MS
from tests.sim.simulation import Scenario

LOSSES = ("lose_tail", "lose_tail_and_leader")


# Effects and commits


def stop_at_first_failed_effect(patch: pytest.MonkeyPatch) -> None:
    """H7: what was to follow a message that could not be sent is never sent."""
    original = Leader.flush

    def flush(self: Leader) -> None:
        if any(stream.is_cut for stream in self.streams.values()):
            for session in self.streams:
                while not session.outgoing.empty():
                    session.outgoing.get_nowait()
        original(self)

    patch.setattr(Leader, "flush", flush)


def emit_before_commit(patch: pytest.MonkeyPatch) -> None:
    """Rule 1, for gateways. Adoption heals it: only I9 and I11 see it (H34)."""
    original = Leader._commit

    async def commit(self: Leader, commit: Commit) -> None:
        self.sessions.emit(self.core, self.num_commits)
        self.flush()
        await original(self, commit)

    patch.setattr(Leader, "_commit", commit)


def dispatch_before_commit(patch: pytest.MonkeyPatch) -> None:
    """Rule 1, for executors. Generations heal it (H34)."""
    original = Leader._commit

    async def commit(self: Leader, commit: Commit) -> None:
        self.links.send_steps()
        self.flush()
        await original(self, commit)

    patch.setattr(Leader, "_commit", commit)


def unknown_is_failure(patch: pytest.MonkeyPatch) -> None:
    """H12: after a timeout the number is used again, for another content."""

    async def commit(self: Leader, commit: Commit) -> None:
        try:
            answer = await self._store.commit(commit, LEASE_TTL_MS)
        except StoreUnavailable:
            self.core._seq -= 1
            self.core._last_commit = commit.previous
            return
        assert answer.outcome not in (Outcome.FENCED, Outcome.LOST)

    def checked(self: Leader, commit_: Commit) -> Any:
        self.last_commit = commit_
        self.cluster.checkers.before_commit(self, commit_)
        return commit(self, commit_)

    patch.setattr(Leader, "_commit", checked)


def unknown_is_success(patch: pytest.MonkeyPatch) -> None:
    """H12: after a timeout all goes on as if it had been applied."""
    original = Leader._commit

    async def commit(self: Leader, commit: Commit) -> None:
        store = self._store

        class Hopeful:
            async def commit(self, commit: Commit, lease_ttl_ms: int) -> CommitAnswer:
                try:
                    return await store.commit(commit, lease_ttl_ms)
                except StoreUnavailable:
                    return CommitAnswer(Outcome.APPLIED, *commit.id[:2], commit.id)

        self._store = Hopeful()  # type: ignore[assignment]
        try:
            await original(self, commit)
        finally:
            self._store = store

    patch.setattr(Leader, "_commit", commit)


def leader_never_renews(patch: pytest.MonkeyPatch) -> None:
    """H18: an idle leader commits nothing, and does not learn that another one leads."""
    patch.setattr("tests.sim.scheduler.RENEWAL_MS", 10**9)


def torn_state_is_used(patch: pytest.MonkeyPatch) -> None:
    """H15: what a half-applied commit left is taken for a state."""
    original = MemoryState.load
    patch.setattr(MemoryState, "load", lambda self: replace(original(self), is_torn=False))


def row_forgets_dropped_output(patch: pytest.MonkeyPatch) -> None:
    """H32: a field that decides something is not stored."""
    original = request_row.read_request_row

    def read(request: Request, row: bytes) -> None:
        original(request, row)
        request.num_stale_output_tokens = 0

    patch.setattr("scheduler_svc.core.snapshot.read_request_row", read)


def restored_queue_is_reversed(patch: pytest.MonkeyPatch) -> None:
    """H32: the rows are right, and what is made of them is not."""

    def restore(self: FCFSRequestQueue, request: Request) -> None:
        self._requests.appendleft(request)

    patch.setattr(FCFSRequestQueue, "restore", restore)


# Epochs


def epoch_without_owner(patch: pytest.MonkeyPatch) -> None:
    """H10: two leaders with one epoch are both obeyed."""

    def hello(self: StepLedger, stream: Any, epoch: int, leader_id: str) -> Any:
        self.leader_id_seen = leader_id
        return original(self, stream, epoch, leader_id)

    original = StepLedger.hello
    patch.setattr(StepLedger, "hello", hello)


def epoch_is_not_raised(patch: pytest.MonkeyPatch) -> None:
    """H11: who is refused for a lower epoch keeps it."""
    patch.setattr(Leader, "report_higher_epoch", lambda self, epoch: None)


# Gateways


def adoption_appends(patch: pytest.MonkeyPatch) -> None:
    """H9: the rows that Redis lost are appended, and the steps in flight count."""

    def adopt(self: Intake, request: Request, rows: Attachment, now_ms: int) -> None:
        if request.is_finished:
            return
        for token_id in rows.delivered_token_ids[request.num_output_tokens :]:
            request.append_output(token_id)
        request.update_block_hashes()
        self._state.dirty_requests[request.request_id] = request

    patch.setattr(Intake, "_adopt", adopt)


def adoption_keeps_kv(patch: pytest.MonkeyPatch) -> None:
    """H9: O := D, but what was computed since stays."""

    def adopt(self: Intake, request: Request, rows: Attachment, now_ms: int) -> None:
        state = self._state
        if request.is_finished:
            request.revive()
            state.place_at_head([request], now_ms)
        request.set_output(rows.delivered_token_ids, rows.delivered_logprobs)
        state.rewritten.add(request.request_id)
        state.dirty_requests[request.request_id] = request

    patch.setattr(Intake, "_adopt", adopt)


def redis_wins(patch: pytest.MonkeyPatch) -> None:
    """H9: what the client saw is not adopted."""
    patch.setattr(Intake, "_adopt", lambda self, request, rows, now_ms: None)


def no_revival(patch: pytest.MonkeyPatch) -> None:
    """H9: a request that has ended in Redis stays ended."""
    original = Intake._adopt

    def adopt(self: Intake, request: Request, rows: Attachment, now_ms: int) -> None:
        if not request.is_finished:
            original(self, request, rows, now_ms)

    patch.setattr(Intake, "_adopt", adopt)


def told_ends_are_ignored(patch: pytest.MonkeyPatch) -> None:
    """H36: what Redis does not know as ended runs on, though its gateway had the end."""
    patch.setattr(Intake, "_end_as_seen", lambda self, gateway_id, rows, now_ms: None)


def old_session_is_read(patch: pytest.MonkeyPatch) -> None:
    """H17: a gateway goes on reading a session after it has counted what was delivered."""
    original = GatewayProcess._receive

    def receive(self: GatewayProcess, session: Session, message: Any) -> None:
        if session is self.session or not isinstance(message, NewOutputs):
            original(self, session, message)
            return
        self.cluster.checkers.on_outputs_obeyed(self, session, message.epoch)
        for output in message.outputs:
            self._take(output)

    patch.setattr(GatewayProcess, "_receive", receive)


def seed_of_the_scheduler(patch: pytest.MonkeyPatch) -> None:
    """H22: the seed is drawn where the request is accepted."""
    original, seeds = Intake._accept, itertools.count()

    def accept(
        self: Intake, gateway_id: str, submission: Submission, rows: Attachment, now_ms: int
    ) -> None:
        params = replace(submission.sampling_params, seed=next(seeds))
        original(self, gateway_id, replace(submission, sampling_params=params), rows, now_ms)

    patch.setattr(Intake, "_accept", accept)


def anyone_may_abort(patch: pytest.MonkeyPatch) -> None:
    """H24: the abort of a gateway that its client has left."""
    original = Intake.abort

    def abort(self: Intake, event: RequestAborted) -> Any:
        request = self._state.requests.get(event.request_id)
        owner = request.owner if request is not None else ""
        return original(self, replace(event, gateway_id=owner))

    patch.setattr(Intake, "abort", abort)


def settings_are_not_stored(patch: pytest.MonkeyPatch) -> None:
    """The leader goes on by them; its successor would not."""
    original = Snapshot._engine_fields
    patch.setattr(Snapshot, "_engine_fields", lambda self: {**original(self), "settings": b"{}"})


PLANTS: dict[Callable[[pytest.MonkeyPatch], None], Scenario] = {  # and the faults that show each
    no_executor_ahead_check: Scenario(LOSSES),
    no_generation: Scenario(("give_up_lane", "stop_executor")),
    bare_generation_counter: Scenario(LOSSES),
    failed_step_goes_on: Scenario(("fail_step",)),
    table_of_the_stream: Scenario(("cut_executor_stream",)),
    one_kept_result: Scenario(),
    stale_output_not_cancelled: Scenario(("kill_executor",)),
    micro_batches: Scenario(),
    victims_keep_their_hashes: Scenario(is_calm=True, draw=crowded, num_calls=range(20, 40)),
    open_on_any_stream: Scenario(("cut_while_redis_is_away",)),
    stop_at_first_failed_effect: Scenario(("cut_session",)),
    emit_before_commit: Scenario(),
    dispatch_before_commit: Scenario(),
    unknown_is_failure: Scenario(("unknown_outcomes",)),
    unknown_is_success: Scenario(("unknown_outcomes",)),
    leader_never_renews: Scenario(),
    torn_state_is_used: Scenario(("tear", "kill_scheduler")),
    row_forgets_dropped_output: Scenario(("reset_prefix_cache",)),
    restored_queue_is_reversed: Scenario(),
    epoch_without_owner: Scenario(("lose_all", "lose_tail_and_leader")),
    epoch_is_not_raised: Scenario(("lose_all",)),
    adoption_appends: Scenario(LOSSES),
    adoption_keeps_kv: Scenario(LOSSES),
    redis_wins: Scenario(LOSSES),
    no_revival: Scenario(("lose_tail_while_gateways_sleep",), num_calls=range(12, 20)),
    told_ends_are_ignored: Scenario(LOSSES),
    old_session_is_read: Scenario(("gateway_looks_again",)),
    seed_of_the_scheduler: Scenario(("lose_all",)),
    anyone_may_abort: Scenario(("client_moves",)),
    settings_are_not_stored: Scenario(("change_settings",)),
}


# What has to be seen where a world may fail otherwise too: without room for whole prompts, requests
# of exactly equal importance can preempt each other for ever (vLLM's rule).
SEEN_AS: dict[Callable[[pytest.MonkeyPatch], None], str] = {victims_keep_their_hashes: "I6"}
