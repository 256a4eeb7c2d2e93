"""The invariants I1 to I12 of DESIGN.md section 3, each checked where it can first be broken.

Sees everything, also what no process can see. Knows nothing about why something happened, but for
the causes that faults note (I11). Invariant: a check changes nothing.
"""

from __future__ import annotations

from array import array
from collections import Counter
from typing import TYPE_CHECKING, Any

from scheduler_svc.core.events import Event, ModelOutputReceived, RequestAborted, SessionOpened
from scheduler_svc.core.lane import Lane, LaneStatus
from scheduler_svc.core.request import Request
from scheduler_svc.core.rows import Commit, CommitId, Key, Table
from scheduler_svc.sessions import GatewaySession, NewOutputs
from scheduler_svc.state_checks import violations
from scheduler_svc.store.memory_store import Meta
from scheduler_svc.store.state_store import CommitAnswer, Outcome
from segue.types import Finish, FinishReason, Generation, SchedulerOutput
from segue.wire import WireCodec
from tests.sim.gateway import Client
from tests.sim.lane_checks import check_counts, check_hashes, check_window
from tests.sim.row_difference import difference
from tests.sim.settings import LEASE_TTL_MS, SHORT_FINISHED_TTL_MS
from tests.sim.text_checks import check_text
from tests.sim.twin_check import check_twin
from tests.sim.world import Life, Violation

if TYPE_CHECKING:
    from tests.sim.cluster import Cluster
    from tests.sim.gateway import GatewayProcess, Session
    from tests.sim.scheduler import Leader
    from tests.sim.token_kv_executor import ExecutorProcess

TROUBLE_MS = 1500  # how long after a fault a lane may be given up because of it
RESTORE_SHARE = 0.15  # of those whose rows are compared
TWIN_SHARE = 0.3  # of those that are restored
ROWS_SHARE = 0.4


class Checkers:
    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.world = cluster.world
        self.counts: Counter[str] = Counter()
        self._contents: dict[CommitId, Commit] = {}
        self._bodies: dict[tuple[str, Generation, int], set[bytes]] = {}
        self._ran: set[tuple[Life, Generation, int]] = set()
        self._run_epochs: dict[tuple[str, Generation, int], int] = {}
        self._last_run: dict[tuple[Life, Generation], int] = {}
        self._answered: dict[Life, tuple[tuple[int, str], Any]] = {}
        self._lanes: dict[str, tuple[Generation, LaneStatus]] = {}
        self._causes: set[tuple[str, Generation | None]] = set()
        self._trouble_at: dict[str, int] = {}
        self._row_errors: set[str] = set()
        self._told_ends: list[tuple[Request, str]] = []  # and the gateway that was told
        self._replaced: set[str] = set()

    # What faults note

    def note_trouble(self, executor_id: str) -> None:
        self._trouble_at[executor_id] = self.world.now

    def note_executor_death(self, executor: ExecutorProcess) -> None:
        self.note_trouble(executor.executor_id)

    def note_replacement(self, executor_id: str) -> None:
        """From now on two processes may say that they are this one."""
        self._replaced.add(executor_id)
        self.note_trouble(executor_id)

    def note_step_failure(self, executor: ExecutorProcess) -> None:
        self._causes.add((executor.executor_id, executor.ledger.generation))

    def note_row_error(self, request_id: str) -> None:
        self._row_errors.add(request_id)

    def note_lane_given_up(self, lane: Lane, cause: str) -> None:
        """I11: a timer is a cause only where something was wrong with the executor."""
        trouble_at = self._trouble_at.get(lane.executor_id)
        has_lost = self.cluster.redis.num_losses > 0
        if not has_lost and (trouble_at is None or self.world.now - trouble_at > TROUBLE_MS):
            raise Violation(f"I11: lane {lane.executor_id} is given up without reason: {cause}")
        self._causes.add((lane.executor_id, lane.generation))

    def note_config_change(self) -> None:
        """No lane of this configuration was seen yet."""
        self._lanes.clear()

    def note_lane_condemned(self, lane: Lane) -> None:
        self._causes.add((lane.executor_id, lane.generation))

    # Events

    def before_event(self, leader: Leader, event: Event) -> None:
        match event:
            case ModelOutputReceived():
                self._check_answers(leader, event)
            case SessionOpened():
                told = {item.request_id for item in event.attachments if item.is_finished}
                requests = leader.core.state.requests
                self._told_ends = [
                    (requests[request_id], event.gateway_id)
                    for request_id in told & requests.keys()
                    if requests[request_id].owner == event.gateway_id
                ]
            case RequestAborted():
                client = self.cluster.client_of(event.request_id)
                request = leader.core.state.requests.get(event.request_id)
                if request is not None and request.owner == event.gateway_id:
                    client.may_be_aborted = True
            case _:
                pass

    def _check_answers(self, leader: Leader, event: ModelOutputReceived) -> None:
        """I4: a result answers the step that was run, not another one of the same number."""
        result = event.result
        lane = leader.core.state.lanes.get(event.executor_id)
        if lane is None or lane.generation != result.generation or not lane.planned:
            return
        plan = lane.planned[0].plan
        if plan.step_id != result.step_id:
            return
        ran = self._run_epochs.get((event.executor_id, plan.generation, plan.step_id))
        if plan.epoch != ran:
            raise Violation(f"I4: {plan.key} is answered by what epoch {ran} planned")

    # Commits

    def before_commit(self, leader: Leader, commit: Commit) -> None:
        """I1: one content for each commit id. I3 and I7: of the state that it makes durable."""
        for request, owner in self._told_ends:
            is_its = leader.core.state.requests.get(request.request_id) is request
            if is_its and request.owner == owner and not request.is_finished:
                raise Violation(f"H36: {request.request_id} runs on behind an end that was told")
        self._told_ends = []
        known = self._contents.setdefault(commit.id, commit)
        if known is not commit:
            raise Violation(f"I1: {commit.id} is sent with another content")
        check_counts(leader.core.state, self.cluster.most_seats)
        meta = self.cluster.redis.state.meta
        is_owner = meta is not None and (meta.epoch, meta.leader_id) == leader.core.leader
        is_comparable = is_owner and self.cluster.redis.num_losses == 0
        for lane in leader.core.state.lanes.values():
            executor = self.cluster.executor_at(lane.address) if is_comparable else None
            check_window(lane, executor, leader.core.state.config.depth)

    def on_commit(self, commit: Commit, answer: CommitAnswer) -> None:
        """At the moment when Redis has answered; the leader has not seen it yet."""
        self.counts[f"commit {answer.outcome.value}"] += 1
        if answer.outcome is Outcome.APPLIED:
            self._note_bodies(commit)
        if answer.outcome not in (Outcome.APPLIED, Outcome.DUPLICATE):
            return
        meta = self.cluster.redis.state.meta
        if meta is None or (meta.epoch, meta.leader_id) != (commit.id.epoch, commit.id.leader_id):
            raise Violation(f"I2: {commit.id} was taken from one who does not lead")
        leader = self.cluster.leader_called(commit.id.leader_id)
        if leader is None or leader.last_commit is not commit:
            return
        self._check_rows(leader)
        if answer.outcome is Outcome.APPLIED:
            self._check_frugal(leader)

    def on_acquired(self, before: Meta | None) -> None:
        """I11: nobody takes over from a leader that was well (H18)."""
        leader = self.cluster.leader_called(before.leader_id) if before is not None else None
        if leader is None or leader.num_commits == 0 or leader.life.is_stopped:
            return
        well_since = max(leader.life.went_on_at, self.cluster.redis.trouble_at)
        if self.world.now - well_since > 2 * LEASE_TTL_MS:
            raise Violation(f"I11: {leader.life.name} was well, and its lease was taken")

    def _note_bodies(self, commit: Commit) -> None:
        codec = WireCodec()
        for key, fields in commit.delta.fields.items():
            if key.table is not Table.LANE_STEPS:
                continue
            for step_id, body in fields.items():
                plan = codec.decode_step(body)
                assert plan.step_id == int(step_id)
                self._bodies.setdefault((key.owner, plan.generation, plan.step_id), set()).add(body)

    def _check_rows(self, leader: Leader) -> None:
        """I10: what the store holds is the core's state, and restoring it gives the same."""
        rng = self.world.check_rng
        if rng.random() > ROWS_SHARE:
            return
        stored = self.cluster.redis.state.all_rows()
        rows = leader.core.rows()
        if stored != rows:
            raise Violation(f"I10: the store differs from the core: {difference(stored, rows)}")
        policy = leader.process.settings.digest().partition("-")[0]
        if found := violations(stored, WireCodec(), policy):
            raise Violation(f"I7: `segue state --check` is not content: {found}")
        if rng.random() > RESTORE_SHARE:
            return
        restored = leader.process.settings.new_core()
        restored.restore(stored)
        again = restored.rows()
        if again != stored:
            raise Violation(f"I10: restored differs: {difference(stored, again)}")
        if restored.state.config != leader.core.state.config:
            raise Violation("I10: a successor would go on with other settings")
        if restored.has_changes():
            raise Violation("I10: what was just restored has changes to commit")
        if rng.random() < TWIN_SHARE:
            check_twin(leader.core, restored, self.world.now)

    def _check_frugal(self, leader: Leader) -> None:
        """I11: while Redis loses nothing, nothing heals: no adoption, no executor ahead."""
        state = leader.core.state
        has_lost = self.cluster.redis.num_losses > 0
        self.counts["adoptions"] += state.counters.num_adoptions - leader.num_adoptions_seen
        leader.num_adoptions_seen = state.counters.num_adoptions
        if state.counters.num_adoptions and not has_lost:
            raise Violation("I11: an adoption, though Redis lost nothing")
        for executor_id, lane in state.lanes.items():
            before = self._lanes.get(executor_id)
            if lane.generation is not None:
                self._lanes[executor_id] = (lane.generation, lane.status)
            if before is None or before[1] is LaneStatus.LOST:
                continue
            if lane.generation != before[0] or lane.status is LaneStatus.LOST:
                self.counts["generations ended"] += 1
                if not has_lost:
                    self._check_cause(lane, before[0])

    def _check_cause(self, lane: Lane, ended: Generation) -> None:
        executor = self.cluster.executor_at(lane.address)
        is_open_there = (
            executor is not None and executor.life.is_alive and executor.ledger.generation == ended
        )
        if lane.executor_id in self._replaced:
            return
        if is_open_there and (lane.executor_id, ended) not in self._causes:
            raise Violation(f"I11: {ended} of {lane.executor_id} ended without a reason")

    # Executors

    def on_answered(self, executor: ExecutorProcess, stream: Any, leader: tuple[int, str]) -> None:
        """I2: a hello is answered only if it is of the highest leader so far."""
        before = self._answered.get(executor.life)
        if before is not None:
            is_other = leader[0] == before[0][0] and leader[1] != before[0][1]
            if leader[0] < before[0][0] or is_other:
                raise Violation(f"I2: {executor.executor_id} obeys {leader} after {before[0]}")
        self._answered[executor.life] = (leader, stream)

    def on_obeyed(self, executor: ExecutorProcess, stream: Any, what: str) -> None:
        if self._answered[executor.life][1] is not stream:
            raise Violation(f"I2: {executor.executor_id} takes {what} from an old stream")

    def on_accepted(
        self, executor: ExecutorProcess, stream: Any, plan: SchedulerOutput, body: bytes
    ) -> None:
        """I1, rule 1: what is dispatched was committed, and its bytes never change."""
        self.on_obeyed(executor, stream, f"step {plan.step_id}")
        key = (executor.executor_id, plan.generation, plan.step_id)
        if body not in self._bodies.get(key, ()):
            raise Violation(f"I1: step {plan.key} was sent and never committed")

    def on_run(self, executor: ExecutorProcess, plan: SchedulerOutput) -> None:
        """I4: each step once for each generation, in order."""
        assert executor.life.is_alive
        self.counts["steps"] += 1
        key = (executor.life, plan.generation, plan.step_id)
        if key in self._ran:
            raise Violation(f"I4: step {plan.step_id} of {plan.generation} is run twice")
        self._ran.add(key)
        self._run_epochs[executor.executor_id, plan.generation, plan.step_id] = plan.epoch
        life_key = (executor.life, plan.generation)
        last = self._last_run.get(life_key)
        if last is not None and plan.step_id != last + 1:
            raise Violation(f"I4: step {plan.step_id} is run after step {last}")
        self._last_run[life_key] = plan.step_id

    # Gateways and clients

    def on_emit(self, leader: Leader, session: GatewaySession, message: NewOutputs) -> None:
        """I9: what is told was committed, and goes on with what was told before."""
        gateway = self.cluster.gateway_called(session.gateway_id)
        current = gateway.session
        is_heard = current is not None and current.is_ready
        if current is None or str(current.number) != session.session_id:
            is_heard = False
        for output in message.outputs:
            request_id, first = output.request_id, output.first_index
            tokens = leader.core.state.requests[request_id].output_token_ids
            told = list(output.new_token_ids)
            if tokens[first : first + len(told)] != told:
                raise Violation(f"I9: {request_id} is told what it does not have")
            has_lost = self.cluster.redis.num_losses > 0
            if not has_lost and told != self._stored(request_id, first, len(told)):
                raise Violation(f"I9: {request_id} is told what Redis does not have")
            entry = gateway.entries.get(request_id) if is_heard else None
            if entry is not None and entry.delivered != tokens[: len(entry.delivered)]:
                raise Violation(f"I9: {request_id}: what was delivered is not its prefix")

    def _stored(self, request_id: str, first: int, count: int) -> list[int]:
        data = self.cluster.redis.state._rows.strings.get(Key(Table.OUTPUTS, request_id), b"")
        tokens = array("i")
        tokens.frombytes(data[4 * first : 4 * (first + count)])
        return tokens.tolist()

    def on_outputs_obeyed(self, gateway: GatewayProcess, session: Session, epoch: int) -> None:
        """I2, at a gateway: nothing of an older session, nor of a lower epoch."""
        if session.number != gateway.num_sessions:
            raise Violation(f"I2: {gateway.gateway_id} reads a session that it has ended")
        if epoch < gateway.leader_seen[0]:
            raise Violation(f"I2: {gateway.gateway_id} takes outputs of epoch {epoch}")

    def on_client_error(self, client: Client, error: str) -> None:
        """A client that came back can be told so only where Redis lost something."""
        is_short = self.cluster.settings.engine.finished_ttl_ms == SHORT_FINISHED_TTL_MS
        if self.cluster.redis.num_losses == 0 and not (is_short and error == "unknown"):
            raise Violation(f"I8: {client.request_id} came back and got: {error}")

    def on_finish(self, client: Client, finish: Finish) -> None:
        self.counts[f"finished {finish.reason.value}"] += 1
        request_id = client.request_id
        if finish.reason is FinishReason.ABORT and not client.may_be_aborted:
            raise Violation(f"I12: {request_id} was aborted: {finish.message}")
        if finish.reason is FinishReason.ERROR and request_id not in self._row_errors:
            self._check_losses(client, finish)
        check_text(client, finish, self.cluster.settings, self.cluster.model_lens)

    def _check_losses(self, client: Client, finish: Finish) -> None:
        if "no executor holds more than" in finish.message:  # one with fewer blocks came first
            return
        limit = self.cluster.settings.engine.max_lane_losses
        if self.counts["generations ended"] < limit:
            raise Violation(f"I12: {client.request_id} ended with an error: {finish.message}")

    def at_end(self) -> None:
        """I6, second half: each hash that is registered is what its block holds."""
        for scheduler in self.cluster.schedulers:
            if scheduler.leader is not None:
                check_hashes(self.cluster, scheduler.leader.core.state)
