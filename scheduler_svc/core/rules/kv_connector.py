"""The contract of a KV connector: KV computed elsewhere is loaded here, or the other way round.

Knows nothing about how KV travels. Invariant: the scheduler asks and is told; a connector changes
no request and no block.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from scheduler_svc.core.request import Request


@dataclass(slots=True, frozen=True)
class ExternalHit:
    """Tokens beyond the local hit whose KV can be loaded; `is_async`: while other steps run."""

    num_tokens: int
    is_async: bool


@dataclass(slots=True, frozen=True)
class TransferReport:
    """What an executor says about transfers, with the result of a step."""

    finished_recving: tuple[str, ...] = ()
    finished_sending: tuple[str, ...] = ()
    invalid_block_ids: frozenset[int] = frozenset()


class KVConnector(ABC):
    @abstractmethod
    def look_up(self, request: Request, num_local_tokens: int) -> ExternalHit | None:
        """What can be loaded for a request that is to be admitted; None: not known yet."""

    @abstractmethod
    def allocated(self, request: Request, num_external_tokens: int) -> None:
        """The request has blocks for what was promised; the load may begin with this step."""

    @abstractmethod
    def keeps_blocks(self, request: Request) -> bool:
        """Whether the blocks of a request that ended are still to be sent. Asked once."""

    @abstractmethod
    def take_report(self) -> TransferReport | None:
        """What was reported since the last call."""
