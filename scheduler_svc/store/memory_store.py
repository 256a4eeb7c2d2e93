"""A state store in memory: the contract in its plainest form, with faults for the simulation.

`MemoryState` is synchronous and answers at once; `MemoryStore` is its async face. Knows nothing
about Redis. Invariant: `history` holds one entry per change, and replaying its first n entries
gives the state after n changes, so any prefix can be taken back as if the rest had been lost.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeVar

from scheduler_svc.core.rows import Commit, CommitId, Delta, Rows
from scheduler_svc.store.keys import unlisted
from scheduler_svc.store.state_store import (
    SCHEMA_VERSION,
    CommitAnswer,
    LeaseAcquired,
    LeaseCandidate,
    LeaseHeld,
    LoadedState,
    Outcome,
    StateStore,
    StoreSight,
    StoreUnavailable,
    require_readable,
)

T = TypeVar("T")


@dataclass(slots=True, frozen=True)
class Meta:
    """The fence, the lease and the ends of the chain: the meta hash of Redis."""

    epoch: int = 0
    leader_id: str = ""
    scheduler_id: str = ""
    address: str = ""
    lease_until_ms: int = 0
    begun: CommitId | None = None
    done: CommitId | None = None
    schema_version: int = SCHEMA_VERSION
    config_digest: str = ""
    now_unix_ms: int = 0


@dataclass(slots=True, frozen=True)
class Change:
    """One entry of the history: meta afterwards, and the rows that changed with it."""

    meta: Meta
    delta: Delta | None = None

    @property
    def is_commit(self) -> bool:
        return self.delta is not None and self.meta.begun == self.meta.done


class MemoryState:
    """The store itself. A commit's delta is kept, not copied: hand it in, then leave it alone."""

    def __init__(self, now_ms: Callable[[], int], config_digest: str = "") -> None:
        self._now_ms = now_ms
        self._config_digest = config_digest
        self._rows = Rows()
        self.meta: Meta | None = None
        self.history: list[Change] = []
        self._candidates: dict[str, LeaseCandidate] = {}  # by leader_id

    def look(self) -> LeaseHeld | None:
        if self.meta is None:
            return None
        meta = self.meta
        expires_in_ms = max(0, meta.lease_until_ms - self._now_ms())
        return LeaseHeld(meta.scheduler_id, meta.address, meta.epoch, meta.leader_id, expires_in_ms)

    def acquire(self, candidate: LeaseCandidate) -> LeaseAcquired | LeaseHeld:
        held = self.look()
        is_ours = held is None or held.scheduler_id == candidate.scheduler_id
        if held is not None and held.expires_in_ms > 0 and not is_ours:
            return held
        meta = self.meta or Meta()
        require_readable(meta.schema_version)
        self._candidates[candidate.leader_id] = candidate
        is_repeated = meta.leader_id == candidate.leader_id and meta.epoch > candidate.above
        epoch = meta.epoch if is_repeated else max(meta.epoch, candidate.above) + 1
        self._record(
            replace(
                meta,
                epoch=epoch,
                leader_id=candidate.leader_id,
                scheduler_id=candidate.scheduler_id,
                address=candidate.address,
                lease_until_ms=self._now_ms() + candidate.lease_ttl_ms,
            )
        )
        return LeaseAcquired(epoch, meta.done)

    def raise_epoch(self, epoch: int, leader_id: str, above: int) -> int | None:
        meta = self.meta
        if meta is None or meta.leader_id != leader_id:
            return None
        if meta.epoch <= max(epoch, above):  # else an earlier try has raised it already
            self._record(replace(meta, epoch=max(epoch, above) + 1))
        assert self.meta is not None
        return self.meta.epoch

    def load(self) -> LoadedState:
        meta = self.meta or Meta()
        return LoadedState(
            rows=self.listed_rows(),
            last_commit=meta.done,
            is_torn=meta.begun != meta.done,
            schema_version=meta.schema_version,
            config_digest=meta.config_digest,
            now_unix_ms=meta.now_unix_ms,
        )

    def commit(self, commit: Commit, lease_ttl_ms: int) -> CommitAnswer:
        outcome = self._judge(commit)
        if outcome is Outcome.APPLIED:
            self._record(self._after(commit, lease_ttl_ms), commit.delta)
        elif outcome is Outcome.DUPLICATE:
            assert self.meta is not None
            self._record(replace(self.meta, lease_until_ms=self._now_ms() + lease_ttl_ms))
        meta = self.meta or Meta()
        return CommitAnswer(
            outcome, meta.epoch, meta.leader_id, meta.done, meta.scheduler_id, meta.address
        )

    def tear(self, commit: Commit, part: Delta) -> None:
        """As if the script had stopped after `part` of the delta: begun is written, done is not."""
        assert self._judge(commit) is Outcome.APPLIED
        assert self.meta is not None
        self._record(replace(self.meta, begun=commit.id), part)

    def release(self, epoch: int, leader_id: str) -> None:
        meta = self.meta
        if meta is not None and (meta.epoch, meta.leader_id) == (epoch, leader_id):
            self._record(replace(meta, lease_until_ms=0))

    def roll_back(self, num_changes: int) -> None:
        """Redis came back with only the first `num_changes` entries of its history."""
        assert 0 <= num_changes <= len(self.history)
        kept = self.history[:num_changes]
        self.wipe()
        for change in kept:
            self._record(change.meta, change.delta)

    def rollback(self, num_commits: int) -> None:
        """Redis came back with only its first `num_commits` commits, and what came before them."""
        ends = [i for i, change in enumerate(self.history, 1) if change.is_commit]
        assert 0 <= num_commits <= len(ends)
        self.roll_back(ends[num_commits - 1] if num_commits else 0)

    def wipe(self) -> None:
        """FLUSHALL: rows, meta and history are gone."""
        self._rows = Rows()
        self.meta = None
        self.history = []

    def listed_rows(self) -> Rows:
        """A copy of the rows that `load` finds: those whose owner is in an index."""
        rows = self.all_rows()
        for key in unlisted(rows):
            rows.hashes.pop(key, None)
            rows.ranks.pop(key, None)
            rows.strings.pop(key, None)
        return rows

    def all_rows(self) -> Rows:
        """A copy of everything, rows of unlisted owners (leaks) included."""
        return Rows(
            hashes={key: dict(row) for key, row in self._rows.hashes.items()},
            ranks={key: dict(row) for key, row in self._rows.ranks.items()},
            strings=dict(self._rows.strings),
        )

    def _judge(self, commit: Commit) -> Outcome:
        meta = self.meta
        if meta is None:
            return Outcome.LOST
        mine = commit.id
        if meta.epoch > mine.epoch:
            return Outcome.FENCED
        if meta.epoch == mine.epoch and meta.leader_id != mine.leader_id:
            return Outcome.FENCED
        if meta.done == mine:
            return Outcome.DUPLICATE
        return Outcome.APPLIED if meta.done == commit.previous else Outcome.LOST

    def _after(self, commit: Commit, lease_ttl_ms: int) -> Meta:
        assert self.meta is not None
        owner = self._candidates.get(commit.id.leader_id)
        return replace(
            self.meta,
            # Redis may have lost our acquisition and nothing else: then the commit restores it.
            epoch=commit.id.epoch,
            leader_id=commit.id.leader_id,
            scheduler_id=owner.scheduler_id if owner else "",
            address=owner.address if owner else "",
            begun=commit.id,
            done=commit.id,
            lease_until_ms=self._now_ms() + lease_ttl_ms,
            schema_version=SCHEMA_VERSION,
            config_digest=self._config_digest,
            now_unix_ms=commit.now_unix_ms,
        )

    def _record(self, meta: Meta, delta: Delta | None = None) -> None:
        self.meta = meta
        if delta is not None:
            self._rows.apply(delta)
        self.history.append(Change(meta, delta))


class MemoryStore(StateStore):
    """The async face. `fail_before` and `fail_after` count verbs that are to end in
    `StoreUnavailable` without, or in spite of, having been done."""

    def __init__(self, state: MemoryState) -> None:
        self.state = state
        self.run_id = "memory"
        self.uptime_ms = 3_600_000
        self.fail_before = 0
        self.fail_after = 0

    async def check_server(self) -> list[str]:
        return ["state is kept in memory only"]

    async def look(self) -> StoreSight:
        return self._answer(lambda: StoreSight(self.run_id, self.uptime_ms, self.state.look()))

    async def acquire(self, candidate: LeaseCandidate) -> LeaseAcquired | LeaseHeld:
        return self._answer(lambda: self.state.acquire(candidate))

    async def raise_epoch(self, epoch: int, leader_id: str, above: int) -> int | None:
        return self._answer(lambda: self.state.raise_epoch(epoch, leader_id, above))

    async def load(self) -> LoadedState:
        return self._answer(self.state.load)

    async def commit(self, commit: Commit, lease_ttl_ms: int) -> CommitAnswer:
        return self._answer(lambda: self.state.commit(commit, lease_ttl_ms))

    async def release(self, epoch: int, leader_id: str) -> None:
        self._answer(lambda: self.state.release(epoch, leader_id))

    async def close(self) -> None:
        return None

    def _answer(self, verb: Callable[[], T]) -> T:
        if self.fail_before > 0:
            self.fail_before -= 1
            raise StoreUnavailable("memory store: not done, by request")
        answer = verb()
        if self.fail_after > 0:
            self.fail_after -= 1
            raise StoreUnavailable("memory store: done, but the answer is withheld, by request")
        return answer
