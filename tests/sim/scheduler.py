"""A scheduler's process: campaigns with the real lease keeper, then pumps the real core.

`Leader` does what `loop.py` does, in the same order. Knows nothing about faults but `effects_left`:
how many more effects it lives to see. Invariant: nothing leaves before the commit that says it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from scheduler_svc.core.engine_core import EngineCore
from scheduler_svc.core.events import (
    Accepted,
    Detached,
    Event,
    ExecutorRegistered,
    LaneOpened,
    LaneRefused,
    OwnerGone,
    Rejected,
    Reply,
    RequestAborted,
    RequestsAttached,
    RequestsSubmitted,
    SessionOpened,
    Tick,
    Unknown,
)
from scheduler_svc.core.rows import Commit
from scheduler_svc.lease import LeaseKeeper
from scheduler_svc.sessions import GatewaySession, NewOutputs, SessionReady, Sessions, SignOfLife
from scheduler_svc.store.state_store import Outcome, StateStore, StoreUnavailable
from tests.sim import messages
from tests.sim.executor_links import ExecutorLinks
from tests.sim.settings import LEASE_TTL_MS, ORPHAN_TIMEOUT_MS, TICK_MS
from tests.sim.simulated_redis import SimulatedStore
from tests.sim.world import Life, Pending, Stream, World, drive

if TYPE_CHECKING:
    from tests.sim.cluster import Cluster

RETRY_DELAYS_MS = (5, 10, 40)
RENEWAL_MS = LEASE_TTL_MS // 3


class Died(Exception):
    """The process was killed in the middle of what it did."""


class Deposed(Exception):
    """Another leads, Redis holds another history, or it was asked to: the process ends."""


@dataclass(slots=True)
class Envelope:
    event: Event
    session: GatewaySession | None = None
    is_hello: bool = False


class Leader:
    """One leader's life."""

    def __init__(self, process: SchedulerProcess, core: EngineCore, store: StateStore) -> None:
        self.process = process
        self.cluster = process.cluster
        self.world: World = process.world
        self.life = process.life
        self.core = core
        self.sessions = Sessions()
        self.links = ExecutorLinks(self)
        self.streams: dict[GatewaySession, Stream] = {}
        self.num_commits = 0
        self.num_adoptions_seen = 0  # by the checkers
        self.last_commit: Commit | None = None
        self._store = store
        self._inbox: deque[Envelope] = deque()
        self._waiter: Callable[[Any], None] | None = None
        self._last_commit_at = 0  # the first commit is made at once
        self._last_tick_at = self.world.now
        self._absent_since: dict[str, int] = {}
        self._refused_above = 0
        self._is_ending = False

    def post(self, envelope: Envelope) -> None:
        self._inbox.append(envelope)
        self._wake()

    def post_event(self, event: Event) -> None:
        self.post(Envelope(event))

    def report_higher_epoch(self, epoch: int) -> None:
        self._refused_above = max(self._refused_above, epoch)
        self._wake()

    async def run(self) -> None:
        await self._step([])
        self._send_alive()
        while not self._is_ending:
            await Pending(self._start_waiting)
            if self.world.now - self._last_tick_at >= TICK_MS:
                self._post_tick()
            if self._refused_above >= self.core.state.epoch:
                await self._raise_epoch()
            batch = list(self._inbox)
            self._inbox.clear()
            await self._step(batch)
        self.sessions.end_all()
        self.flush()
        await self._store.release(*self.core.leader)
        raise Deposed("stopped")

    def end(self) -> None:
        self._is_ending = True
        self._wake()

    def _start_waiting(self, done: Callable[[Any], None]) -> None:
        self._waiter = done
        if self._inbox:
            self._wake()
            return
        due = self._last_tick_at + TICK_MS
        self.world.at(max(due, self.world.now), self.life, lambda: self._fire(done))

    def _wake(self) -> None:
        waiter = self._waiter
        if waiter is not None:
            delay = self.world.rng.choice((0, 0, 1))
            self.world.after(delay, self.life, lambda: self._fire(waiter))

    def _fire(self, waiter: Callable[[Any], None]) -> None:
        if self._waiter is waiter:
            self._waiter = None
            waiter(None)

    async def _step(self, batch: list[Envelope]) -> None:
        due: list[tuple[Envelope, list[Reply]]] = []
        for envelope in batch:
            self.cluster.checkers.before_event(self, envelope.event)
            due.append((envelope, self.core.handle(envelope.event)))
            self.world.detail(self.life.name, "handles", envelope.event, "=>", due[-1][1])
        self.core.plan(self.links.ready())
        is_renewal_due = self.world.now - self._last_commit_at >= RENEWAL_MS
        if self.core.has_changes() or is_renewal_due:
            await self._commit(self.core.take_commit(self.world.now))
        self._tell(due)
        self.links.send_steps()
        self.sessions.emit(self.core, self.num_commits)
        self.flush()

    async def _commit(self, commit: Commit) -> None:
        self.process.effect("commit")
        self.last_commit = commit
        self.cluster.checkers.before_commit(self, commit)
        attempt = 0
        while True:
            try:
                answer = await self._store.commit(commit, LEASE_TTL_MS)
                break
            except StoreUnavailable:
                delay = RETRY_DELAYS_MS[min(attempt, len(RETRY_DELAYS_MS) - 1)]
                await self.process.sleep(delay)
                attempt += 1
        if answer.outcome in (Outcome.FENCED, Outcome.LOST):
            raise Deposed(f"commit {commit.id} is {answer.outcome.value}")
        self.process.effect("committed")
        self.world.detail(self.life.name, commit.id, answer.outcome)
        self._last_commit_at = self.world.now
        self.num_commits += 1

    def _tell(self, due: list[tuple[Envelope, list[Reply]]]) -> None:
        for envelope, replies in due:
            if envelope.is_hello and envelope.session is not None:
                envelope.session.outgoing.put_nowait(SessionReady(*self.core.leader))
            for reply in replies:
                self._deliver(envelope, reply)

    def _deliver(self, envelope: Envelope, reply: Reply) -> None:
        match reply:
            case Detached():
                owner = self.sessions.current(reply.gateway_id)
                if owner is not None:
                    owner.tell(reply)
            case Accepted() | Unknown() | Rejected():
                if envelope.session is not None:
                    envelope.session.tell(reply)
            case LaneOpened():
                self.links.opened(reply)
            case LaneRefused():
                self.links.refused(reply)
            case _:
                pass

    def flush(self) -> None:
        """What the pump has put into queues goes out, one message after another."""
        for session, stream in list(self.streams.items()):
            while not session.outgoing.empty():
                self._send(session, stream, session.outgoing.get_nowait())
        for link in list(self.links.streams.values()):
            assert link.stream is not None
            while link.outgoing:
                self.process.effect("message to an executor")
                link.stream.send(0, link.outgoing.pop(0))

    def _send(self, session: GatewaySession, stream: Stream, message: Any) -> None:
        if message is None:
            self.streams.pop(session, None)
            stream.cut()
            return
        self.process.effect("message to a gateway")
        if isinstance(message, NewOutputs):
            self.cluster.checkers.on_emit(self, session, message)
        stream.send(1, message)

    def _post_tick(self) -> None:
        now = self.world.now
        if now - self._last_tick_at > LEASE_TTL_MS:
            self._absent_since.clear()  # this process did not run: that was nobody's absence (H19)
        self._last_tick_at = now
        self.post(Envelope(Tick(now)))
        self.links.post_losses()
        absent = self.core.owners() - self.sessions.gateway_ids()
        self._absent_since = {o: self._absent_since.get(o, now) for o in absent}
        for owner, since in self._absent_since.items():
            if now - since >= ORPHAN_TIMEOUT_MS:
                self.post(Envelope(OwnerGone(owner, now)))

    def _send_alive(self) -> None:
        """A task of its own in the service: a commit that takes long does not stop it."""
        for stream in self.streams.values():
            stream.send(1, SignOfLife(self.core.leader[0]))
        self.world.after(TICK_MS, self.life, self._send_alive)

    async def _raise_epoch(self) -> None:
        epoch, leader_id = self.core.leader
        try:
            raised = await self._store.raise_epoch(epoch, leader_id, self._refused_above)
        except StoreUnavailable:
            return
        if raised is None:
            raise Deposed("a peer obeys a higher epoch, and redis another leader")
        self.world.note(f"{self.life.name} raises its epoch from {epoch} to {raised}")
        self.core.raise_epoch(raised)
        self.sessions.end_all()
        self.links.reconnect_all()
        self.flush()

    def open_session(self, hello: messages.SessionHello, stream: Stream) -> GatewaySession | None:
        """What service.Session does with a hello; None: refused."""
        epoch, leader_id = self.core.leader
        epoch_seen, leader_id_seen = hello.leader_seen
        if epoch_seen > epoch or (epoch_seen == epoch and leader_id_seen != leader_id):
            self.report_higher_epoch(epoch_seen)
            return None
        session = GatewaySession(hello.gateway_id, hello.session_id)
        self.sessions.open(session)
        self.streams[session] = stream
        opened = SessionOpened(hello.gateway_id, hello.attachments, self.world.now)
        self.post(Envelope(opened, session, is_hello=True))
        return session

    def hear(self, session: GatewaySession, message: Any) -> None:
        if message is None or not self.sessions.is_current(session):
            self.sessions.close(session)
            stream = self.streams.pop(session, None)
            if stream is not None:
                stream.cut()
            return
        gateway_id, now = session.gateway_id, self.world.now
        match message:
            case messages.Submit():
                event: Event = RequestsSubmitted(
                    gateway_id, message.submissions, message.delivered, now
                )
            case messages.Abort():
                event = RequestAborted(gateway_id, message.request_id, message.reason, now)
            case messages.Attach():
                event = RequestsAttached(gateway_id, message.attachments, now)
            case _:
                return
        self.post(Envelope(event, session))


class SchedulerProcess:
    """Started again and again by the cluster, always with the same scheduler_id."""

    def __init__(self, cluster: Cluster, scheduler_id: str) -> None:
        self.cluster = cluster
        self.world = cluster.world
        self.scheduler_id = scheduler_id
        self.life = Life(scheduler_id, is_alive=False)
        self.settings = cluster.settings
        self.leader: Leader | None = None
        self.effects_left: int | None = None

    def start(self) -> None:
        self.life = Life(self.scheduler_id, went_on_at=self.world.now)
        self.settings = self.cluster.settings  # what it is started with
        self.leader = None
        self.effects_left = None
        self.life.on_death.append(self._on_death)
        self.world.note(f"{self.scheduler_id} starts")
        drive(self._main(), lambda error: None)

    def effect(self, what: str) -> None:
        if self.effects_left is None:
            return
        self.effects_left -= 1
        if self.effects_left < 0:
            self.world.note(f"{self.scheduler_id} dies before: {what}")
            self.world.kill(self.life)
            raise Died

    def sleep(self, delay: int) -> Pending:
        return Pending(lambda done: self.world.after(delay, self.life, lambda: done(None)))

    async def _main(self) -> None:
        try:
            await self._lead()
        except Died:
            return
        except (Deposed, StoreUnavailable) as reason:
            self.world.note(f"{self.scheduler_id} ends: {reason}")
            self.world.kill(self.life)

    async def _lead(self) -> None:
        settings = self.settings
        store = SimulatedStore(self.cluster.redis, self.life, settings.digest())

        async def sleep(delay_s: float) -> None:
            await self.sleep(max(1, int(delay_s * 1000)))

        keeper = LeaseKeeper(
            store, self.scheduler_id, self.scheduler_id, LEASE_TTL_MS / 1000, sleep=sleep
        )
        acquired, leader_id = await keeper.campaign()
        core = settings.new_core()
        loaded = await self._load(store)
        if loaded.is_torn:
            self.world.note("what is loaded is torn, and discarded")
            self.cluster.redis.num_losses += 1
            core.discard(loaded.rows)
        elif loaded.config_digest in ("", settings.digest()):
            core.restore(loaded.rows)
        else:
            self.world.note(f"{self.scheduler_id} has another configuration")
            core.restore_requests(loaded.rows)
        core.lead(acquired.epoch, leader_id, loaded.last_commit)
        self.world.note(f"{self.scheduler_id} leads with epoch {acquired.epoch}")
        self.leader = Leader(self, core, store)
        if loaded.config_digest not in ("", settings.digest()):
            self.cluster.checkers.note_config_change()
        await self.leader.run()

    async def _load(self, store: StateStore) -> Any:
        while True:
            try:
                return await store.load()
            except StoreUnavailable:
                await self.sleep(20)

    def _on_death(self) -> None:
        self.leader = None
        self.cluster.restart_later(self.start, self.world.rng.choice((5, 50, 250)))

    def register(self, executor_id: str, address: str, epoch_seen: int) -> None:
        """What service.Register does."""
        leader = self.leader
        if leader is None:
            return
        if epoch_seen > leader.core.leader[0]:
            leader.report_higher_epoch(epoch_seen)
        lane = leader.core.state.lanes.get(executor_id)
        if lane is None or lane.address != address:
            leader.post(Envelope(ExecutorRegistered(executor_id, address)))

    def acceptor(self) -> Callable[[Stream, Any], None]:
        """The receiver of a gateway's stream at this end."""
        session: GatewaySession | None = None
        leader: Leader | None = None

        def receive(stream: Stream, message: Any) -> None:
            nonlocal session, leader
            if session is not None and leader is not None:
                leader.hear(session, message)
                return
            leader = self.leader
            if isinstance(message, messages.SessionHello) and leader is not None:
                session = leader.open_session(message, stream)
            if session is None:
                stream.send(1, messages.NotLeader())
                stream.cut()

        return receive
