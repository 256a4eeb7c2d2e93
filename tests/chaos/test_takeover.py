"""A leader that is stopped, replaced, and wakes again: its writes are refused."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chaos.streams import Streams, asks, undisturbed
from tests.served import Served, wait_until


@pytest.fixture(scope="module")
def served(hand_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Two schedulers and a short lease; steps of 10 ms."""
    monkeypatch = pytest.MonkeyPatch()
    monkeypatch.setenv("SEGUE_FAULT_STEP_DELAY_MS", "10")
    flags = ["--num-schedulers", "2", "--lease-ttl-s", "1", "--heartbeat-s", "0.2"]
    running = Served(hand_model, tmp_path_factory.mktemp("serve") / "state", flags)
    monkeypatch.undo()
    yield running
    running.stop()
    print(running.log()[-20_000:])  # shown where the test failed


def leader_name(served: Served) -> str:
    """The child that says that it leads."""
    for name in ("scheduler-0", "scheduler-1"):
        try:
            if served.metrics(name)["segue:is_leader"]:
                return name
        except OSError:
            continue
    return ""


async def test_a_stopped_leader_is_replaced_and_refused_when_it_wakes(served: Served) -> None:
    asked = asks(8, max_tokens=500)
    expected = await undisturbed(served, asked)
    old = wait_until(lambda: leader_name(served), "a leader")
    new = "scheduler-1" if old == "scheduler-0" else "scheduler-0"
    recomputed = served.metrics("executor-0")["segue:executor_positions_recomputed_total"]
    old_pid = served.pid(old)
    async with Streams(served, asked) as streams:
        await streams.reach(30)
        os.kill(old_pid, signal.SIGSTOP)
        reached = max(len(stream.token_ids) for stream in streams.all)
        await streams.reach(reached + 30)  # only a new leader can have sent these
        epoch = served.metrics(new)["segue:epoch"]
        os.kill(old_pid, signal.SIGCONT)
    assert [s.text for s in streams.all] == [s.text for s in expected]
    metrics = served.metrics("executor-0")
    assert metrics["segue:executor_positions_recomputed_total"] == recomputed
    served.wait_restarted(old, old_pid)  # it ended by itself: it was fenced
    assert "FENCED" in served.log().upper()
    assert served.metrics(new)["segue:epoch"] == epoch
