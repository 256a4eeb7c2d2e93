"""An executor with other weights comes to a running deployment: it gets nothing to do."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import httpx

from segue.serve_plan import free_ports
from tests.served import Served, stop_process, wait_until


def test_it_is_refused_and_the_others_serve_on(
    hand_model: Path, served: Served, tmp_path: Path
) -> None:
    processes = served.record()["processes"]
    (scheduler,) = [one["port"] for one in processes if one["name"] == "scheduler-0"]
    (port,) = free_ports(1)
    other = Path(shutil.copytree(hand_model, tmp_path / "other"))
    config = json.loads((other / "config.json").read_text())
    (other / "config.json").write_text(json.dumps(config | {"revision": 2}))
    command = [sys.executable, "-m", "executor_svc", "--executor-id", "stranger"]
    command += ["--model", str(other), "--listen", f"127.0.0.1:{port}"]
    command += ["--schedulers", f"127.0.0.1:{scheduler}"]
    stranger = subprocess.Popen(command)
    try:
        line = "executor stranger is refused: its model is "
        wait_until(lambda: line in served.log(), "the scheduler refuses it")
        answer = httpx.post(
            f"{served.url}/v1/completions",
            json={"model": served.model, "prompt": "go on", "max_tokens": 8},
            timeout=60,
        )
        assert answer.status_code == 200, answer.text
        assert stranger.poll() is None
    finally:
        stop_process(stranger)
