"""The pure state machine: an event goes in, effects come out, and the first of them is the commit.

Use it as `loop.py` does: `handle` events, `plan` steps for the lanes that can take them, then
`take_commit` and store it; only then tell gateways and executors what the state says and they do
not have yet (`touched`, the lanes' `planned`), and the replies that `handle` returned.

Knows nothing about streams, Redis, clocks or bytes (a codec is handed in). Invariant: between
`take_commit` and its outcome nothing is changed; `restore(load()) == core` after each commit.
"""

from __future__ import annotations

from collections.abc import Collection

from scheduler_svc.core.commit_record import CommitRecord, TakenResult
from scheduler_svc.core.engine_state import Codec, EngineConfig, EngineState, MakePolicy
from scheduler_svc.core.events import (
    CacheReset,
    Event,
    ExecutorConnected,
    ExecutorRegistered,
    GenerationEnded,
    LaneDrained,
    ModelOutputReceived,
    OwnerGone,
    PauseChanged,
    PrefixCacheReset,
    Reply,
    RequestAborted,
    RequestsAttached,
    RequestsSubmitted,
    SessionOpened,
    SettingsChanged,
    Tick,
)
from scheduler_svc.core.generations import Generations
from scheduler_svc.core.intake import Intake
from scheduler_svc.core.lane import Lane, PlannedStep
from scheduler_svc.core.reconfiguration import Configuration, Reconfiguration
from scheduler_svc.core.rows import Commit, CommitId, Rows
from scheduler_svc.core.snapshot import Snapshot
from scheduler_svc.core.step_tracing import TraceparentOf, always_traced, untraced
from segue.types import FinishReason, SchedulerOutput, StepKey


class EngineCore:
    """Everything the scheduler decides, for one leader's life: `lead`, then events and commits."""

    def __init__(
        self,
        config: EngineConfig,
        codec: Codec,
        make_policy: MakePolicy,
        configuration: Configuration | None = None,
    ) -> None:
        self.state = EngineState(config, make_policy)
        self._codec = codec
        self._intake = Intake(self.state)
        self._generations = Generations(self.state)
        self._reconfiguration = Reconfiguration(self.state, configuration)
        self._snapshot = Snapshot(self.state, codec, self._reconfiguration)
        self._leader_id = ""
        self._seq = 0
        self._last_commit: CommitId | None = None
        self.last_plans: list[tuple[str, PlannedStep]] = []
        self.last_record = CommitRecord()

    def lead(self, epoch: int, leader_id: str, last_commit: CommitId | None) -> None:
        """Begin a leader's life on the state that `last_commit` left."""
        assert epoch > self.state.epoch
        self.state.epoch = epoch
        self._leader_id = leader_id
        self._last_commit = last_commit

    @property
    def leader(self) -> tuple[int, str]:
        return self.state.epoch, self._leader_id

    def raise_epoch(self, epoch: int) -> None:
        """The same leader goes on with a higher epoch, since a peer had seen one (H11)."""
        assert epoch > self.state.epoch
        self.state.epoch = epoch

    def restore(self, rows: Rows) -> None:
        """Take over the state that an earlier leader left. Called once, before any event."""
        self._snapshot.restore(rows)

    def restore_requests(self, rows: Rows) -> None:
        """Like `restore`, of rows that were made under another configuration: nothing that they
        claim about executors' memory holds, so every lane gets a new generation (H32)."""
        self._snapshot.restore_requests(rows)

    def discard(self, rows: Rows) -> None:
        """The rows are a mixture of two commits: the first commit removes them."""
        self._snapshot.discard(rows)

    def num_tokens_recomputed(self) -> int:
        policies = [lane.policy for lane in self.state.lanes.values() if lane.policy is not None]
        given_back = sum(policy.num_tokens_given_back() for policy in policies)
        return self.state.counters.num_tokens_recomputed + given_back

    def rows(self) -> Rows:
        """The whole state as rows; what the store holds after a commit (I10)."""
        return self._snapshot.full_rows()

    def handle(self, event: Event) -> list[Reply]:
        """Apply one event. The replies are due once the next commit is done, and not before."""
        match event:
            case ModelOutputReceived():
                return self._update_from_output(event)
            case RequestsSubmitted():
                return self._intake.submit(event)
            case RequestAborted():
                return self._intake.abort(event)
            case RequestsAttached():
                return self._intake.attach(event)
            case SessionOpened():
                return self._intake.open_session(event)
            case OwnerGone():
                return self._intake.owner_gone(event)
            case Tick():
                return self._intake.expire(event)
            case _:
                return self._handle_operation(event)

    def _handle_operation(self, event: Event) -> list[Reply]:
        match event:
            case ExecutorRegistered():
                return self._generations.register(event)
            case ExecutorConnected():
                return self._generations.connect(event)
            case GenerationEnded():
                return self._generations.end(event)
            case LaneDrained():
                return self._generations.drain(event)
            case PauseChanged():
                return self._set_pause_state(event)
            case SettingsChanged():
                return self._reconfiguration.change(event)
            case PrefixCacheReset():
                return self._reset_prefix_cache(event)
            case _:
                raise AssertionError(f"no handler for {event}")

    def plan(self, ready: Collection[str], traceparent_of: TraceparentOf = untraced) -> None:
        """Plan steps for these lanes (connected and opened), up to `depth` in flight each."""
        self.last_plans = []
        for executor_id in sorted(ready):
            lane = self.state.lanes[executor_id]
            while lane.is_open and self._plan_step(lane, traceparent_of):
                pass

    def take_commit(self, now_unix_ms: int) -> Commit:
        """The commit that makes all that was changed durable. An empty one renews the lease."""
        self._seq += 1
        commit_id = CommitId(self.state.epoch, self._leader_id, self._seq)
        delta = self._snapshot.take_delta()
        commit = Commit(commit_id, self._last_commit, delta, now_unix_ms)
        self._last_commit = commit_id
        self.last_record, self.state.record = self.state.record, CommitRecord()
        return commit

    def has_changes(self) -> bool:
        return self._snapshot.has_changes()

    def take_touched(self) -> list[str]:
        """Requests with rows or an end that their gateway may not have; for after the commit."""
        touched = list(self.state.touched)
        self.state.touched.clear()
        return touched

    def max_model_len(self) -> int:
        """The longest that any lane can serve."""
        return self._intake.max_model_len()

    def owners(self) -> set[str]:
        """Gateways (and orphans' names) that have a request that has not ended."""
        return {r.owner for r in self.state.requests.values() if not r.is_finished}

    def _plan_step(self, lane: Lane, traceparent_of: TraceparentOf) -> bool:
        policy = lane.policy
        assert policy is not None
        depth = min(self.state.config.depth, policy.max_steps_in_flight)
        if len(lane.planned) >= depth or not policy.has_work():
            return False
        assert lane.generation is not None
        key = StepKey(lane.next_step_id, self.state.epoch)
        plan = policy.schedule(key, lane.generation, traceparent_of(lane.executor_id, key))
        self.state.dirty_lanes.add(lane.executor_id)
        for request_id in policy.take_ignored():
            self.state.note_finish(self.state.requests[request_id])
        if _says_nothing(plan):
            return False
        if plan.preempted_req_ids:
            plan = always_traced(plan)
        step = PlannedStep(plan, self._codec.encode_step(plan))
        self.state.counters.num_preemptions += len(plan.preempted_req_ids)
        lane.planned.append(step)
        lane.next_step_id += 1
        self.last_plans.append((lane.executor_id, step))
        return True

    def _update_from_output(self, event: ModelOutputReceived) -> list[Reply]:
        """Take the result of the oldest step in flight; any other is stale, and counted."""
        state = self.state
        lane = state.lanes.get(event.executor_id)
        result = event.result
        if (
            lane is None
            or lane.generation != result.generation
            or not lane.planned
            or lane.planned[0].plan.step_id != result.step_id
        ):
            state.counters.num_stale_outputs += 1
            return []
        assert lane.policy is not None
        plan = lane.planned.pop(0).plan
        state.note_progress(plan.num_scheduled_tokens)
        outputs = lane.policy.update_from_output(plan, result, event.now_ms)
        lane.retired = plan.key
        state.dirty_lanes.add(lane.executor_id)
        state.counters.num_steps_finished += 1
        state.record.results.append(TakenResult(event.executor_id, plan, result, outputs))
        state.touched.update(dict.fromkeys(outputs))
        for request_id in [i for i, finish in outputs.items() if finish is not None]:
            state.note_finish(state.requests[request_id])
        for request_id, error in result.row_errors.items():
            request = state.requests.get(request_id)
            if request is not None and not request.is_finished:
                state.end_request(request, FinishReason.ERROR, error, event.now_ms)
        return []

    def _set_pause_state(self, event: PauseChanged) -> list[Reply]:
        self.state.pause_state = event.state
        for lane in self.state.lanes.values():
            if lane.policy is not None:
                lane.policy.set_pause_state(event.state)
        return []

    def _reset_prefix_cache(self, event: PrefixCacheReset) -> list[Reply]:
        is_reset = True
        for lane in self.state.lanes.values():
            if lane.policy is not None:
                is_reset = lane.policy.reset_prefix_cache(event.reset_running) and is_reset
                self.state.dirty_lanes.add(lane.executor_id)
        return [CacheReset(is_reset)]


def _says_nothing(plan: SchedulerOutput) -> bool:
    """Neither work nor news for the executor: such a step is not made."""
    return not (
        plan.num_scheduled_tokens
        or plan.finished_req_ids
        or plan.preempted_req_ids
        or plan.swap_in
        or plan.swap_out
    )
