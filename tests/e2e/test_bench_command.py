"""`segue bench` against a running serve, and in turn with a peer, as a user starts it."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.served import Served

SMALL = ("--prompt-tokens", "8", "--output-tokens", "5", "--token-ids", "3:250")


def bench(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "segue", "bench", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=90, check=False)


@pytest.mark.slow
def test_closed_loops_and_arrivals(served: Served, tmp_path: Path) -> None:
    path = tmp_path / "figures.json"
    at = ("serve", "--base-url", f"{served.url}/v1", *SMALL, "--json", str(path))
    done = bench(*at, "--streams", "1,4", "--goodput", "ttft:60000")
    assert done.returncode == 0, done.stderr
    one, four = json.loads(path.read_text())["loads"]
    assert (one["requests"], four["requests"], four["failed"]) == (2, 8, 0)
    assert (four["output_tokens"], four["prompt_tokens"]) == (40, 64)
    assert four["goodput_requests_per_s"] == four["requests_per_s"]
    assert "4 streams" in done.stdout

    done = bench(*at, "--rate", "50", "--num-requests", "5")
    assert done.returncode == 0, done.stderr
    (load,) = json.loads(path.read_text())["loads"]
    assert (load["load"], load["requests"]) == ("50 req/s", 5)


def test_what_a_server_refuses_is_counted_and_said(served: Served) -> None:
    done = bench("serve", "--base-url", served.url, "--streams", "1", "--token-ids", "5000:5001")
    assert done.returncode == 1
    assert "2 × HTTP/1.1 400" in done.stderr
    assert "Traceback" not in done.stderr


def test_no_server_is_one_line() -> None:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))  # and does not listen
        port = one.getsockname()[1]
        done = bench("serve", "--base-url", f"http://127.0.0.1:{port}")
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.slow
def test_compares_in_turns(hand_model: Path, tmp_path: Path) -> None:
    """The peer is a program that takes llama-server's flags; here it is one more serve."""
    program = tmp_path / "llama-server"
    state = tmp_path / "peer"
    program.write_text(
        f"#!{sys.executable}\n"
        "import os, sys\n"
        "port = sys.argv[sys.argv.index('--port') + 1]\n"
        f"os.execv(sys.executable, [sys.executable, '-m', 'segue', 'serve', '--model', "
        f"{str(hand_model)!r}, '--served-model-name', 'x.gguf', '--port', port, "
        f"'--state-dir', {str(state)!r}])\n"
    )
    program.chmod(0o755)
    path = tmp_path / "figures.json"
    command = [sys.executable, "-m", "segue", "bench", "compare", "--with", "llama.cpp"]
    command += ["--model", str(hand_model), "--gguf", "x.gguf", "--llama-server", str(program)]
    command += ["--rounds", "1", "--streams", "2", "--json", str(path), *SMALL]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (row,) = json.loads(path.read_text())["loads"]
    ratio = row["segue"]["output_tokens_per_s"] / row["llama.cpp"]["output_tokens_per_s"]
    assert row["throughput of segue / llama.cpp"] == pytest.approx(ratio, abs=1e-3)


def test_an_unknown_peer_is_one_line(hand_model: Path) -> None:
    done = bench("compare", "--with", "tgi", "--model", str(hand_model))
    assert done.returncode == 1
    assert done.stderr.strip() == "segue bench: error: --with tgi: not one of llama.cpp, vllm"


def test_flags_behind_the_dashes_are_our_serve_s(hand_model: Path, tmp_path: Path) -> None:
    """What `segue serve` refuses is told, with the name of who refused it."""
    command = [sys.executable, "-m", "segue", "bench", "compare", "--with", "llama.cpp"]
    command += ["--model", str(hand_model), "--gguf", "x.gguf", "--", "--policy", "none.such"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("segue bench: error: segue ended with 2"), done.stderr
    assert len(done.stderr.splitlines()) == 1
