"""A hint is tried once; the configured addresses are tried for ever."""

from __future__ import annotations

from gateway_svc.scheduler_addresses import SchedulerAddresses


async def test_the_configured_ones_in_turn() -> None:
    addresses = SchedulerAddresses(("127.0.0.1:1", "[::1]:2"))

    assert [await addresses.next() for _ in range(3)] == ["127.0.0.1:1", "[::1]:2", "127.0.0.1:1"]


async def test_a_hint_comes_next_and_only_once() -> None:
    addresses = SchedulerAddresses(("127.0.0.1:1",))
    addresses.suggest("127.0.0.1:9")

    assert [await addresses.next() for _ in range(2)] == ["127.0.0.1:9", "127.0.0.1:1"]


async def test_a_name_that_does_not_resolve_is_left_to_grpc() -> None:
    assert await SchedulerAddresses(("no.such.host.invalid:1",)).next() == "no.such.host.invalid:1"
