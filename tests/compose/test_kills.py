"""Any container but the gateway dies in mid-stream, and the client sees nothing of it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass

import httpx
import pytest

from tests.chaos.streams import Ask, Stream, Streams, asks
from tests.compose.deployment import Deployment
from tests.server_events import Events

MAX_TOKENS = 60
pytestmark = pytest.mark.timeout(600)


@dataclass(frozen=True)
class Gateway:
    """One of the deployment's, as `Streams` wants it."""

    url: str
    model: str


def gateways(deployment: Deployment) -> list[Gateway]:
    return [Gateway(deployment.gateway_url(i), deployment.model) for i in range(2)]


async def through_both(
    deployment: Deployment, asked: Sequence[Ask], victim: str | None = None
) -> list[Stream]:
    """Each question to each gateway at once; `victim` dies when all streams have begun."""
    after = deployment.started_at(victim) if victim else ""
    async with AsyncExitStack() as stack:
        running = [
            await stack.enter_async_context(Streams(gateway, list(asked)))
            for gateway in gateways(deployment)
        ]
        if victim:
            for streams in running:
                await streams.reach(5)
            await asyncio.to_thread(deployment.kill, victim)
            for streams in running:
                await streams.reach(5)
    if victim:
        await asyncio.to_thread(deployment.wait_healthy, victim, after)
    return [stream for streams in running for stream in streams.all]


@pytest.fixture(scope="module")
def undisturbed(deployment: Deployment) -> list[Stream]:
    return asyncio.run(through_both(deployment, asks(2, MAX_TOKENS)))


def test_both_gateways_say_the_same(undisturbed: list[Stream]) -> None:
    first, second = undisturbed[:2], undisturbed[2:]
    assert first == second
    assert [len(stream.token_ids) for stream in first] == [MAX_TOKENS] * 2


@pytest.mark.parametrize(
    "victim", ["scheduler-0", "scheduler-1", "executor-0", "executor-1", "redis", "jaeger"]
)
async def test_a_client_does_not_see_the_death_of(
    deployment: Deployment, undisturbed: list[Stream], victim: str
) -> None:
    assert await through_both(deployment, asks(2, MAX_TOKENS), victim) == undisturbed


def test_a_client_of_a_killed_gateway_goes_on_through_the_other(
    deployment: Deployment, undisturbed: list[Stream]
) -> None:
    body = asks(1, MAX_TOKENS)[0].body(deployment.model)
    body = {**body, **body.pop("extra_body"), "stream": True}
    first, second = (gateway.url for gateway in gateways(deployment))
    seen, after, is_killed = Events(), deployment.started_at("gateway-0"), False
    with (
        pytest.raises(httpx.HTTPError),
        httpx.stream("POST", f"{first}/v1/completions", json=body, timeout=60) as response,
    ):
        for line in response.iter_lines():
            seen.take(line)
            if len(seen.text) > 20 and not is_killed:
                is_killed = True
                deployment.kill("gateway-0")
    assert seen.finish_reason is None
    call_id = seen.last_id.partition(";")[0]
    headers = {"Last-Event-ID": seen.last_id}
    url = f"{second}/v1/streams/{call_id}"
    with httpx.stream("GET", url, headers=headers, timeout=60) as response:
        assert response.status_code == 200
        for line in response.iter_lines():
            seen.take(line)
    assert (seen.text, seen.finish_reason) == (undisturbed[0].text, "length")
    deployment.wait_healthy("gateway-0", after)
