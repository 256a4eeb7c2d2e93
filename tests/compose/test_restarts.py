"""A new version comes: every container is restarted, one by one, and no stream ends early.

The last test of the folder stops everything, and looks how each took it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from openai import APIConnectionError, AsyncOpenAI, InternalServerError

from tests.chaos.streams import Ask, Stream, asks, read
from tests.compose.deployment import Deployment

MAX_TOKENS = 20
# Whom others need comes last; the gateways drain.
ONE_BY_ONE = (
    *("jaeger", "redis", "scheduler-1", "scheduler-0"),
    *("executor-1", "executor-0", "gateway-1", "gateway-0"),
)
STOPS_CLEANLY = tuple(name for name in ONE_BY_ONE if name != "jaeger")
pytestmark = pytest.mark.timeout(900)


class Load:
    """Asks the same question again and again, of whichever gateway takes it."""

    def __init__(self, deployment: Deployment, ask: Ask, first: int) -> None:
        self._model = deployment.model
        self._ask = ask
        self._clients = [
            AsyncOpenAI(
                base_url=f"{deployment.gateway_url(i)}/v1",
                api_key="none",
                max_retries=0,
                timeout=100,
            )
            for i in (first, 1 - first)
        ]
        self.answers: list[Stream] = []
        self.is_over = False

    async def run(self) -> None:
        while not self.is_over:
            self.answers.append(await self._answer())
        for client in self._clients:
            await client.close()

    async def _answer(self) -> Stream:
        """A gateway that stops refuses what is new. That a stream breaks off is never forgiven."""
        while True:
            for client in self._clients:
                stream = Stream()
                try:
                    await read(client, self._ask, self._model, stream)
                except (APIConnectionError, InternalServerError):
                    assert not stream.token_ids, "a stream broke off"
                    await asyncio.sleep(0.05)
                else:
                    return stream


@asynccontextmanager
async def under_load(deployment: Deployment) -> AsyncIterator[list[Load]]:
    loads = [Load(deployment, ask, i % 2) for i, ask in enumerate(asks(2, MAX_TOKENS))]
    async with asyncio.TaskGroup() as group:
        for load in loads:
            group.create_task(load.run())
        yield loads
        for load in loads:
            load.is_over = True


async def test_all_are_restarted_under_load(deployment: Deployment) -> None:
    async with under_load(deployment) as loads:
        for service in ONE_BY_ONE:
            before = [len(load.answers) for load in loads]
            started_at = deployment.started_at(service)
            await asyncio.to_thread(deployment.compose, "restart", "--no-deps", service)
            await asyncio.to_thread(deployment.wait_healthy, service, started_at)
            while any(len(load.answers) == n for load, n in zip(loads, before, strict=True)):
                await asyncio.sleep(0.05)
    for load in loads:
        assert all(answer == load.answers[0] for answer in load.answers)
        assert len(load.answers[0].token_ids) == MAX_TOKENS


def test_everybody_stops_when_told(deployment: Deployment) -> None:
    """Exit code 0: within its grace, and with nothing left to say."""
    deployment.compose("stop")
    assert {name: deployment.state(name)["ExitCode"] for name in STOPS_CLEANLY} == dict.fromkeys(
        STOPS_CLEANLY, 0
    )
