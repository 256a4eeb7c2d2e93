"""The contract of a state store: one leader at a time, and one chain of commits.

Knows rows and commit ids; knows nothing about scheduling, and nothing about how rows are kept.
`memory_store.py` and `redis_store.py` implement it, `tests/conformance/test_state_store.py` holds
both to it. Invariant: what a store holds is always a prefix of the chain, or says that it is torn;
and only the leader with the highest epoch extends it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from enum import Enum

from scheduler_svc.core.rows import Commit, CommitId, Rows
from segue.version import OLDEST_STATE_SCHEMA_VERSION, STATE_SCHEMA_VERSION

SCHEMA_VERSION = STATE_SCHEMA_VERSION


class StoreError(Exception):
    """Something is wrong with the store."""


class StoreUnavailable(StoreError):
    """The outcome is unknown, or the store does not serve now: do the very same thing again."""


class StoreUnsuitable(StoreError):
    """The server can not keep our promises (eviction, version, durability, login). Do not start."""


class StoreCorrupt(StoreError):
    """The rows are not what we wrote (a wrong type, an answer we do not know). Trying again does
    not help: the process ends, and `load` of the next one tells whether the state is torn."""


@dataclass(slots=True, frozen=True)
class LeaseCandidate:
    """Who wants to lead. `leader_id` is drawn at random by the caller, once per acquisition."""

    scheduler_id: str
    leader_id: str
    address: str
    lease_ttl_ms: int
    above: int = 0  # the highest epoch that any peer has named: the new one must be above it


@dataclass(slots=True, frozen=True)
class LeaseAcquired:
    """We lead. `last_commit` is the predecessor that our first commit must name."""

    epoch: int
    last_commit: CommitId | None


@dataclass(slots=True, frozen=True)
class LeaseHeld:
    """Somebody else leads, or did until `expires_in_ms` from now."""

    scheduler_id: str
    address: str
    epoch: int
    leader_id: str
    expires_in_ms: int


class Outcome(Enum):
    APPLIED = "applied"  # the store's last commit was our predecessor; now it is ours
    DUPLICATE = "duplicate"  # it was ours already: an earlier try had arrived
    FENCED = "fenced"  # a higher epoch, or the same one of another leader, owns the store
    LOST = "lost"  # the store went back, or was wiped: our predecessor is not its last commit


@dataclass(slots=True, frozen=True)
class CommitAnswer:
    """The outcome, and what the store holds after it: its owner and its last commit."""

    outcome: Outcome
    epoch: int  # 0: the store knows no owner
    leader_id: str
    last_commit: CommitId | None
    scheduler_id: str = ""
    address: str = ""


@dataclass(slots=True, frozen=True)
class LoadedState:
    """All rows, and what the store says of them.

    `is_torn`: a commit has begun and was not done, so the rows are a mixture: treat them as wiped,
    and drop them in the first commit. (An empty commit would hide the tear.)
    """

    rows: Rows
    last_commit: CommitId | None
    is_torn: bool = False
    schema_version: int = SCHEMA_VERSION
    config_digest: str = ""  # of the leader that made the last commit
    now_unix_ms: int = 0  # of the last commit


@dataclass(slots=True, frozen=True)
class StoreSight:
    """What a standby can see without writing: which life of the server this is, and who leads."""

    run_id: str
    uptime_ms: int
    leader: LeaseHeld | None  # None: no leader has ever been here, or the store was wiped


def require_readable(schema_version: int) -> None:
    """Raises StoreUnsuitable where rows of this version are not to be touched."""
    if schema_version > SCHEMA_VERSION:
        raise StoreUnsuitable(
            f"the state has schema version {schema_version}, and this scheduler knows "
            f"{SCHEMA_VERSION}: start a newer scheduler, or discard the state"
        )
    if schema_version < OLDEST_STATE_SCHEMA_VERSION:
        raise StoreUnsuitable(
            f"the state has schema version {schema_version}, and this scheduler reads none before "
            f"{OLDEST_STATE_SCHEMA_VERSION}: start an older scheduler, or discard the state"
        )


class StateStore(ABC):
    """Every verb raises `StoreUnavailable` when it can not know what happened. All of them may
    be repeated with the same arguments: a late first try then changes nothing more."""

    @abstractmethod
    async def check_server(self) -> list[str]:
        """Warnings to log at start. Raises `StoreUnsuitable` where a promise can not be kept."""

    @abstractmethod
    async def look(self) -> StoreSight:
        """Reads who leads and how old the server is. Changes nothing."""

    async def current_leader(self) -> LeaseHeld | None:
        """Who leads, or led last (`expires_in_ms` is 0); None: nobody ever did."""
        return (await self.look()).leader

    @abstractmethod
    async def acquire(self, candidate: LeaseCandidate) -> LeaseAcquired | LeaseHeld:
        """Takes the lease if it is free, expired (by the server's clock), or our own.

        The same `scheduler_id` takes its lease back at once; another waits for its end. The new
        epoch is above the stored one and above `candidate.above`. Rows and last commit stay as
        they are. Repeated with the same `leader_id` it is the same acquisition. Raises
        `StoreUnsuitable`, and changes nothing, where the rows are of a version not read here.
        """

    @abstractmethod
    async def raise_epoch(self, epoch: int, leader_id: str, above: int) -> int | None:
        """The owner takes an epoch above `above`, since a peer has seen that one (H11).

        None: `leader_id` does not own the store any more. Rows and last commit stay.
        """

    @abstractmethod
    async def load(self) -> LoadedState:
        """Reads everything. To be called by the owner, after `acquire`, before its first commit:
        then no older leader can write while it reads, and a newer one will fence its commit.

        Rows of a lane or a request are found through the index hashes LANES and REQUESTS: a row
        whose owner is not listed there is not loaded (`keys.INDEX`).
        """

    @abstractmethod
    async def commit(self, commit: Commit, lease_ttl_ms: int) -> CommitAnswer:
        """Extends the chain by one link, atomically, and renews the lease, in one round trip.

        In this order (H12): a higher stored epoch, or the same one of another leader, is FENCED;
        a missing meta row is LOST (never a first commit); last commit = this one is DUPLICATE;
        last commit = `commit.previous` is APPLIED; anything else is LOST. FENCED and LOST change
        nothing. An empty delta is a renewal, and a link of the chain like any other.

        On `StoreUnavailable` the caller hands in the very same commit until it has an answer.
        """

    @abstractmethod
    async def release(self, epoch: int, leader_id: str) -> None:
        """The owner lets the lease expire now (SIGTERM). Nothing happens if it is not the owner."""

    @abstractmethod
    async def close(self) -> None:
        """Ends the connections. The lease stays as it is."""
