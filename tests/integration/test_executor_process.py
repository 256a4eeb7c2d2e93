"""The executor as it is started: flags, one computed step, metrics, SIGTERM."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from segue.grpc_server import execute_stub, open_channel
from segue.model_files.hand import write_hand_model
from segue.types import NewRequestData, SamplingParams, SchedulerOutput
from tests.integration.executor_stream import FIRST, SchedulerEnd

PROMPT = (1, 2, 3)
EXPECTED_TOKEN = (1 * 1 + 2 * 2 + 3 * 3) % 256  # the hand model's rule


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    write_hand_model(tmp_path / "hand")
    return tmp_path / "hand"


@pytest.fixture
def ports() -> tuple[int, int]:
    return free_port(), free_port()


@pytest.fixture
def process(model: Path, ports: tuple[int, int]) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", "executor_svc", "--listen", f"127.0.0.1:{ports[0]}"]
    command += ["--executor-id", "e0", "--schedulers", f"127.0.0.1:{free_port()}"]
    command += ["--model", str(model), "--dtype", "auto", "--num-blocks", "32"]
    command += ["--num-threads", "1", "--metrics-port", str(ports[1])]
    process = subprocess.Popen(command, env={**os.environ, "OMP_NUM_THREADS": "1"})
    try:
        yield process
    finally:
        process.kill()
        process.wait()


@pytest.mark.timeout(60)
async def test_process_computes_counts_and_says_goodbye(
    process: subprocess.Popen[bytes], ports: tuple[int, int]
) -> None:
    async with open_channel(f"127.0.0.1:{ports[0]}") as channel:
        stream = SchedulerEnd(execute_stub(channel)(wait_for_ready=True))
        ack = (await stream.hello()).hello_ack
        assert (ack.executor_id, ack.capacity.num_blocks) == ("e0", 32)
        await stream.open()
        new = NewRequestData(
            "r", PROMPT, 3, 0, (1,), SamplingParams(seed=1, max_tokens=4, temperature=0.0)
        )
        await stream.send_plan(
            SchedulerOutput(
                1, 1, FIRST, [new], num_scheduled_tokens={"r": 3}, output_indices={"r": 0}
            )
        )
        result = await stream.read_result()
        assert result.sampled_token_ids == [[EXPECTED_TOKEN]]
        assert 'positions_computed_total{executor_id="e0"} 3.0' in read_metrics(ports[1])
        process.send_signal(signal.SIGTERM)
        assert (await stream.read()).WhichOneof("message") == "goodbye"
        assert (await stream.end())[0] is grpc.StatusCode.OK
    assert process.wait(20) == 0


def read_metrics(port: int) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as response:
        return response.read().decode()


@pytest.mark.timeout(60)
def test_directory_without_a_model_is_one_readable_line(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "executor_svc", "--model", str(tmp_path / "none")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("executor_svc: error: ")
    assert done.stderr.count("\n") == 1
