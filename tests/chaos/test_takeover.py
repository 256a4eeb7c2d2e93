"""A leader that is stopped, replaced, and wakes again: its writes are refused."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from segue.model_files.demo_model import ensure_demo_model
from tests.chaos.kills import held_streams, let_run
from tests.chaos.step_gate import StepGate
from tests.chaos.streams import asks, undisturbed
from tests.served import ONE_THREAD, Served, wait_until


@pytest.fixture(params=["hand", "bfloat16", "float32"])
def served(
    request: pytest.FixtureRequest,
    hand_model: Path,
    gate: StepGate,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Served]:
    """Two schedulers and a short lease, on the hand model or on a real one in this dtype."""
    flags = ["--num-schedulers", "2", "--lease-ttl-s", "1", "--heartbeat-s", "0.2"]
    model = hand_model
    if request.param != "hand":
        model = ensure_demo_model()
        flags += ["--dtype", request.param, "--num-blocks", "400"]
    state_dir = tmp_path_factory.mktemp("serve") / "state"
    running = Served(model, state_dir, flags, ONE_THREAD | gate.environ)
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


@pytest.mark.timeout(300)  # a real model, on whatever machine
async def test_a_stopped_leader_is_replaced_and_refused_when_it_wakes(
    served: Served, gate: StepGate
) -> None:
    asked = asks(8, max_tokens=120)
    expected = await undisturbed(served, asked)
    old = wait_until(lambda: leader_name(served), "a leader")
    new = "scheduler-1" if old == "scheduler-0" else "scheduler-0"
    recomputed = served.metrics("executor-0")["segue:executor_positions_recomputed_total"]
    old_pid = served.pid(old)
    async with held_streams(served, gate, asked, leader=old) as streams:
        await let_run(streams, gate, num_steps=20, num_tokens=80)
        os.kill(old_pid, signal.SIGSTOP)
        # More than the old leader has planned: a new one has.
        await let_run(streams, gate, num_steps=60, num_tokens=8 * 40)
        epoch = served.metrics(new)["segue:epoch"]
        os.kill(old_pid, signal.SIGCONT)
    assert [s.text for s in streams.all] == [s.text for s in expected]
    metrics = served.metrics("executor-0")
    assert metrics["segue:executor_positions_recomputed_total"] == recomputed
    served.wait_restarted(old, old_pid)  # it ended by itself: it was fenced
    assert "FENCED" in served.log().upper()
    assert served.metrics(new)["segue:epoch"] == epoch
