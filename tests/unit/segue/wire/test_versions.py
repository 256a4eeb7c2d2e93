"""Which version of the protocol two processes come to."""

from __future__ import annotations

import pytest

from segue.wire import OUR_VERSIONS, ProtocolMismatch, ProtocolVersions

FIRST, SECOND, BOTH = ProtocolVersions(1, 1), ProtocolVersions(2, 2), ProtocolVersions(1, 2)


@pytest.mark.parametrize(
    "one, other, agreed",
    [(FIRST, FIRST, 1), (FIRST, BOTH, 1), (BOTH, BOTH, 2), (SECOND, BOTH, 2)],
    ids=str,
)
def test_the_newest_that_both_speak(
    one: ProtocolVersions, other: ProtocolVersions, agreed: int
) -> None:
    assert one.agree(other) == other.agree(one) == agreed


@pytest.mark.parametrize(
    "one, other, said",
    [
        (BOTH, ProtocolVersions(3, 4), "protocol version 3 to 4, ours is 1 to 2"),
        (SECOND, FIRST, "protocol version 1, ours is 2"),
        (FIRST, ProtocolVersions(2, 1), "protocol version 2 to 1, ours is 1"),
    ],
)
def test_no_version_in_common_names_both(
    one: ProtocolVersions, other: ProtocolVersions, said: str
) -> None:
    with pytest.raises(ProtocolMismatch, match=said):
        one.agree(other)


def test_a_hello_without_a_newest_version_speaks_one() -> None:
    assert ProtocolVersions.of_hello(1, 0) == FIRST
    assert ProtocolVersions.of_hello(1, 2) == BOTH


def test_an_answer_that_names_no_version_means_our_oldest() -> None:
    assert BOTH.confirm(0) == 1
    assert BOTH.confirm(2) == 2
    with pytest.raises(ProtocolMismatch):
        BOTH.confirm(3)


def test_executors_and_gateways_of_the_version_before_are_served() -> None:
    """The promise of docs/protocol.md: services are not upgraded in one moment."""
    assert OUR_VERSIONS.oldest == max(1, OUR_VERSIONS.newest - 1)
