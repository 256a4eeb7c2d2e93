"""The engine loop: events in, plan, one commit, then tell the peers what they do not have.

Knows nothing about what is decided (core) or how bytes travel (clients, service). Invariant (rule
1): nothing leaves before the commit that says it is done; nothing is planned while an outcome is
unknown. No RPC can cancel the loop; it ends by itself, when it is no longer the leader.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import deque
from dataclasses import dataclass

from scheduler_svc.config import SchedulerServiceConfig
from scheduler_svc.core.engine_core import EngineCore
from scheduler_svc.core.events import (
    Accepted,
    CacheReset,
    Detached,
    Event,
    LaneOpened,
    LaneRefused,
    OwnerGone,
    Rejected,
    Reply,
    SettingsRefused,
    SettingsTaken,
    Tick,
    Unknown,
)
from scheduler_svc.core.rows import Commit
from scheduler_svc.executor_client import Executors
from scheduler_svc.live_settings import LiveConfiguration
from scheduler_svc.loop_observer import LoopObserver
from scheduler_svc.sessions import GatewaySession, SessionReady, Sessions, SignOfLife
from scheduler_svc.step_log import StepLog
from scheduler_svc.step_meters import StepMeters
from scheduler_svc.store.state_store import Outcome, StateStore, StoreUnavailable
from scheduler_svc.timings import Timings
from segue.instruments import Service
from segue.meters import Meters

log = logging.getLogger("segue.scheduler")
RETRY_DELAYS_S = (0.01, 0.05, 0.1, 0.25)


class Deposed(Exception):
    """Another leads, or Redis holds another history: this process has to end."""


@dataclass(slots=True)
class Envelope:
    """An event with the session that it came from, or the caller that waits for its commit."""

    event: Event
    session: GatewaySession | None = None
    done: asyncio.Future[list[Reply]] | None = None
    is_hello: bool = False


class EngineLoop:
    """One leader's life. `post` may be called from any task of the same event loop."""

    def __init__(
        self,
        core: EngineCore,
        store: StateStore,
        sessions: Sessions,
        executors: Executors,
        flags: SchedulerServiceConfig,
        observer: LoopObserver | None = None,
    ) -> None:
        """`core` is restored: the settings of its state count beside the flags."""
        self.configuration = LiveConfiguration(flags)
        config = self.configuration.config(core.state.settings)
        self.core = core
        self.timings = Timings()
        self.meters = Meters(
            Service.SCHEDULER, {"model_name": config.model_name}, max_tokens=config.max_model_len
        )
        self.is_store_down = False
        self._store = store
        self._sessions = sessions
        self._executors = executors
        self._config = config
        self._observer = observer or LoopObserver(core)
        self._inbox: deque[Envelope] = deque()
        self._wake = asyncio.Event()
        self._is_stopping = False
        self._step_meters = StepMeters(self.meters, has_prefix_cache=config.enable_prefix_caching)
        self._commit_duration = self.meters.distribution("segue:commit_duration_seconds")
        self._step_log = StepLog(enabled=config.log_steps)
        self._last_commit_at = 0.0
        self._last_tick_at = time.monotonic()
        self._absent_since: dict[str, float] = {}
        self._refused_above: int = 0

    def post(self, envelope: Envelope) -> None:
        self._inbox.append(envelope)
        self._wake.set()

    async def ask(self, event: Event) -> list[Reply]:
        """Post an event and wait for its commit."""
        done: asyncio.Future[list[Reply]] = asyncio.get_running_loop().create_future()
        self.post(Envelope(event, done=done))
        return await done

    def report_higher_epoch(self, epoch: int) -> None:
        """A peer obeys a higher epoch: we raise ours, or learn that we are not the owner (H11)."""
        self._refused_above = max(self._refused_above, epoch)
        self._wake.set()

    def connected_lanes(self) -> set[str]:
        return set(self._executors.ready())

    def alive(self) -> SignOfLife:
        return SignOfLife(self.core.leader[0])

    def stop(self) -> None:
        self._is_stopping = True
        self._wake.set()

    async def run(self) -> None:
        """Lead until stopped or deposed. The first commit is made at once: it proves the lease."""
        self._use(self._config)
        self._observer.begin()
        await self._step([])
        tick_s = min(self._config.heartbeat_s, self._config.lease_ttl_s / 3)
        next_tick = time.monotonic() + tick_s
        while not self._is_stopping:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(max(0.0, next_tick - time.monotonic())):
                    await self._wake.wait()
            self._wake.clear()
            if time.monotonic() >= next_tick:  # also while events come without a pause
                next_tick = time.monotonic() + tick_s
                self._post_tick()
            if self._refused_above >= self.core.state.epoch:
                await self._raise_epoch()
            batch = list(self._inbox)
            self._inbox.clear()
            await self._step(batch)

    async def _step(self, batch: list[Envelope]) -> None:
        timings = self.timings
        started = time.thread_time()
        due = [(envelope, self._observer.handle(envelope.event)) for envelope in batch]
        updated = time.thread_time()
        self._observer.plan(self._executors.ready())
        planned = time.thread_time()
        if self.core.has_changes() or self._is_renewal_due():
            self._observer.commit_begins()
            await self._commit(self.core.take_commit(time.time_ns() // 1_000_000))
            self._step_meters.note_commit(self.core)
            self._observer.committed()
        committed = time.thread_time()
        self._tell(due)
        self._executors.send_steps()
        self._observer.sent()
        timings.num_tokens += self._sessions.emit(self.core, timings.num_commits)
        emitted = time.thread_time()
        if self.core.last_plans:
            phases = (updated - started, planned - updated, committed - planned)
            self._step_meters.note_turn(*phases, emitted - committed)
        timings.emit_s += emitted - committed
        timings.update_s += updated - started
        timings.schedule_s += planned - updated
        timings.commit_s += committed - planned
        self._step_log.write(self.core)

    def _is_renewal_due(self) -> bool:
        return time.monotonic() - self._last_commit_at >= self._config.lease_ttl_s / 3

    async def _commit(self, commit: Commit) -> None:
        """Hand the same commit to the store until its outcome is known."""
        attempt = 0
        lease_ttl_ms = int(self._config.lease_ttl_s * 1000)
        started = time.perf_counter()
        while True:
            try:
                answer = await self._store.commit(commit, lease_ttl_ms)
                break
            except StoreUnavailable as error:
                if not self.is_store_down:
                    log.warning("redis is not available, nothing is sent until it is: %s", error)
                self.is_store_down = True
                await asyncio.sleep(RETRY_DELAYS_S[min(attempt, len(RETRY_DELAYS_S) - 1)])
                attempt += 1
        if self.is_store_down:
            log.warning("redis is back after %.1f s", time.perf_counter() - started)
            self.is_store_down = False
        if answer.outcome in (Outcome.FENCED, Outcome.LOST):
            raise Deposed(
                f"commit {commit.id} is {answer.outcome.value}: redis has epoch {answer.epoch} of "
                f"leader {answer.leader_id!r}, last commit {answer.last_commit}"
            )
        self._last_commit_at = time.monotonic()
        self.timings.num_commits += 1
        self._commit_duration.observe(time.perf_counter() - started)

    def _tell(self, due: list[tuple[Envelope, list[Reply]]]) -> None:
        """Deliver the replies, now that what they say is committed."""
        for envelope, replies in due:
            if envelope.is_hello and envelope.session is not None:
                session = envelope.session
                longest, version = self.core.max_model_len(), session.protocol_version
                session.outgoing.put_nowait(SessionReady(*self.core.leader, longest, version))
            for reply in replies:
                self._deliver(envelope, reply)
            if envelope.done is not None and not envelope.done.done():
                envelope.done.set_result(replies)

    def _deliver(self, envelope: Envelope, reply: Reply) -> None:
        match reply:
            case Detached():
                owner = self._sessions.current(reply.gateway_id)
                if owner is not None:
                    owner.tell(reply)
            case Accepted() | Unknown() | Rejected():
                if isinstance(reply, Rejected):
                    self._step_meters.note_rejection(reply.code)
                if envelope.session is not None:
                    envelope.session.tell(reply)
            case LaneOpened():
                self._executors.opened(reply)
            case LaneRefused():
                self._executors.refused(reply)
            case SettingsTaken():
                self._use(self.configuration.config(reply.settings))
            case CacheReset() | SettingsRefused():
                pass

    def _use(self, config: SchedulerServiceConfig) -> None:
        """What the core does not decide: how long we wait, and what is written down."""
        self._config = config
        self._executors.use(config)
        self._observer.use(config)
        self._step_log = StepLog(enabled=config.log_steps)

    def _post_tick(self) -> None:
        now_ms = time.time_ns() // 1_000_000
        self.post(Envelope(Tick(now_ms)))
        self._executors.post_losses(now_ms)
        self._post_orphans(now_ms)

    def _post_orphans(self, now_ms: int) -> None:
        """Owners without a session for too long; the time counts from when this leader saw it."""
        now = time.monotonic()
        if now - self._last_tick_at > self._config.lease_ttl_s:
            self._absent_since.clear()  # this process did not run: that was nobody's absence (H19)
        self._last_tick_at = now
        absent = self.core.owners() - self._sessions.gateway_ids()
        self._absent_since = {o: self._absent_since.get(o, now) for o in absent}
        for owner, since in self._absent_since.items():
            if now - since >= self._config.orphan_timeout_s:
                self.post(Envelope(OwnerGone(owner, now_ms)))

    async def _raise_epoch(self) -> None:
        epoch, leader_id = self.core.leader
        try:
            raised = await self._store.raise_epoch(epoch, leader_id, self._refused_above)
        except StoreUnavailable as error:
            log.warning("redis is not available, the epoch is raised later: %s", error)
            return
        if raised is None:
            raise Deposed(f"a peer obeys epoch {self._refused_above}, and redis another leader")
        log.warning("epoch raised from %d to %d: a peer had seen %d", epoch, raised, raised - 1)
        self.core.raise_epoch(raised)
        self._sessions.end_all()
        self._executors.reconnect_all()
