"""Which versions of the protocol a process speaks, and the one that two processes agree on.

Knows two numbers, no stream and no message. Invariant: both ends come to the same version, or to
none; it is the newest that both speak.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

PROTOCOL_VERSION: Final = 1
OLDEST_PROTOCOL_VERSION: Final = 1  # one below, once there is a second: docs/protocol.md


class ProtocolMismatch(ValueError):
    """The message is one readable line."""


@dataclass(slots=True, frozen=True)
class ProtocolVersions:
    """All from `oldest` to `newest`."""

    oldest: int
    newest: int

    @classmethod
    def of_hello(cls, protocol_version: int, newest_protocol_version: int) -> ProtocolVersions:
        """The second is 0 from a peer that knows one version only."""
        return cls(protocol_version, newest_protocol_version or protocol_version)

    def agree(self, peer: ProtocolVersions) -> int:
        version = min(self.newest, peer.newest)
        if version < max(self.oldest, peer.oldest):
            raise ProtocolMismatch(f"protocol version {peer}, ours is {self}")
        return version

    def confirm(self, version: int) -> int:
        """What the answer to our hello says; 0 from a peer that took our oldest for our only."""
        answered = version or self.oldest
        return self.agree(ProtocolVersions(answered, answered))

    def __str__(self) -> str:
        is_one = self.oldest == self.newest
        return str(self.oldest) if is_one else f"{self.oldest} to {self.newest}"


OUR_VERSIONS: Final = ProtocolVersions(OLDEST_PROTOCOL_VERSION, PROTOCOL_VERSION)
