"""What a leader says, and how often it dials, where an executor is not what was asked for."""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import replace

import pytest

from tests.integration.executor_stream import CAPACITY, running_executor
from tests.integration.leading_scheduler import CONFIG, running_scheduler

PAUSES_S = (0.05, 0.1, 0.2, 0.4)


async def test_a_refused_executor_is_told_once_and_dialled_less_and_less(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.DEBUG, "segue.scheduler")
    monkeypatch.setattr("scheduler_svc.executor_client.REFUSED_REDIAL_S", PAUSES_S)
    config = replace(CONFIG, block_size=2 * CAPACITY.block_size)
    began = time.monotonic()
    async with running_executor() as executor, running_scheduler(executor.address, config):
        said = "executor e0 is refused: its block size is 16, the scheduler's 32"
        async with asyncio.timeout(5):
            while caplog.text.count(said) < 4:
                await asyncio.sleep(0.01)
    levels = [one.levelno for one in caplog.records if said in one.getMessage()]
    assert levels[:4] == [logging.ERROR, logging.DEBUG, logging.DEBUG, logging.DEBUG]
    assert time.monotonic() - began >= sum(PAUSES_S[1:])


@pytest.mark.parametrize("mode, times", [("swap", 1), ("recompute", 0)])
async def test_no_room_to_swap_out_to_is_told_when_the_executor_comes(
    caplog: pytest.LogCaptureFixture, mode: str, times: int
) -> None:
    caplog.set_level(logging.INFO, "segue.scheduler")
    config = replace(CONFIG, policy="three_queue", preemption_mode=mode)
    async with running_executor() as executor, running_scheduler(executor.address, config):
        async with asyncio.timeout(5):
            while "opened generation" not in caplog.text:
                await asyncio.sleep(0.01)
    assert caplog.text.count("executor e0 has no blocks to swap out to") == times
