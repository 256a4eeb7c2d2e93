"""What a person sees of `segue serve`: what it prints, what it refuses, what it leaves."""

from __future__ import annotations

import json
import shlex
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from segue.embedded_redis import find_redis
from segue.process_identity import ProcessIdentity
from segue.state_directory import read_record
from tests.served import Served, wait_until

Serve = Callable[..., Served]


def segue(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "segue", *arguments], capture_output=True, text=True, check=False
    )


@pytest.fixture
def serve(hand_model: Path, tmp_path: Path) -> Iterator[Serve]:
    """Starts one on the same state directory as the one before."""
    started: list[Served] = []

    def start(*flags: str, model: Path = hand_model) -> Served:
        started.append(Served(model, tmp_path / "state", flags))
        return started[-1]

    yield start
    for served in started:
        served.stop()


def said(served: Served, text: str) -> str:
    """The last line with this text that `serve` has printed, as soon as it has."""
    return wait_until(lambda: last_line(served, text), f"{text!r} is said")


def last_line(served: Served, text: str) -> str:
    return next((line for line in reversed(served.log().splitlines()) if text in line), "")


def identities(served: Served) -> list[ProcessIdentity]:
    record = read_record(served.state_dir)
    assert record is not None
    return [one.identity for one in record.processes]


def kill_and_wait(served: Served, name: str) -> str:
    """The line that says it is back."""
    served.kill(name)

    def line() -> str:
        found = last_line(served, f"{name} (killed by SIGKILL) is back")
        return found if f"pid {served.pid(name)} " in found else ""

    return wait_until(line, f"{name} is back")


def test_the_curl_line_works_as_printed(served: Served) -> None:
    line = said(served, "try     curl").partition("try ")[2].strip()
    answer = subprocess.run(shlex.split(line), capture_output=True, text=True, check=True)
    assert answer.stdout.rstrip().endswith("data: [DONE]")


def test_the_kill_line_names_the_scheduler_and_the_restart_is_one_line(served: Served) -> None:
    pid = int(said(served, "kill    kill -9").split()[-1])
    assert served.pid("scheduler-0") == pid
    line = kill_and_wait(served, "scheduler-0")
    assert "epoch 2" in line
    assert "0 tokens recomputed" in line


def test_ps_prints_pids_and_lines_again(served: Served) -> None:
    shown = segue("ps", "--state-dir", str(served.state_dir))
    assert shown.returncode == 0
    for one in served.record()["processes"]:
        assert f"{one['name']} {one['identity']['pid']}" in shown.stdout
    assert f"kill -9 {served.pid('scheduler-0')}" in shown.stdout


def test_ctl_pauses_and_resumes(served: Served) -> None:
    at = ("--state-dir", str(served.state_dir))
    assert segue("ctl", "pause", *at).stdout == "paused_new\n"
    assert json.loads(segue("ctl", "status", "--json", *at).stdout)["pause_state"] == "paused_new"
    assert segue("ctl", "resume", *at).stdout == "unpaused\n"
    assert "empty" in segue("ctl", "reset-cache", *at).stdout


def test_state_shows_a_finished_request_as_redis_has_it(served: Served) -> None:
    body = {"model": served.model, "prompt": "abc", "max_tokens": 5, "ignore_eos": True}
    answer = httpx.post(f"{served.url}/v1/completions", json=body, timeout=30)
    assert answer.status_code == 200
    at = ("--state-dir", str(served.state_dir))
    state = json.loads(segue("state", "--json", *at).stdout)
    request = state["requests"][f"{answer.json()['id']}-0"]
    assert (request["status"], request["num_output_tokens"]) == ("FINISHED_LENGTH_CAPPED", 5)
    assert state["lanes"]["e0"]["running"] == []
    assert "FINISHED_LENGTH_CAPPED" in segue("state", *at).stdout


def test_stopping_leaves_no_process(serve: Serve) -> None:
    served = serve()
    running = identities(served)
    served.stop()
    assert served.process.returncode == 0
    assert not any(one.is_alive() for one in running)
    assert segue("ps", "--state-dir", str(served.state_dir)).returncode == 1


def test_what_ran_when_serve_was_killed_goes_on_at_the_next_start(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SEGUE_FAULT_STEP_DELAY_MS", "20")
    served = serve()
    body = {"model": served.model, "prompt": "abc", "max_tokens": 150, "ignore_eos": True}
    url = f"{served.url}/v1/completions"
    with httpx.stream("POST", url, json=body | {"stream": True}, timeout=60) as response:
        lines = response.iter_lines()
        next(lines)
        served.process.kill()
        served.process.wait()
        # Children die with serve, but not at the same instant: a client that left first would be
        # seen to leave by a gateway that still runs.
        with pytest.raises(httpx.TransportError):
            list(lines)
    again = serve()

    def end() -> tuple[str, int] | None:
        state = json.loads(segue("state", "--json", "--state-dir", str(again.state_dir)).stdout)
        (request,) = state["requests"].values()
        status = request["status"]
        return (status, request["num_output_tokens"]) if status.startswith("FINISHED") else None

    assert wait_until(end, "the request ends") == ("FINISHED_LENGTH_CAPPED", 150), again.log()


def test_a_taken_port_is_one_line(hand_model: Path, tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        shown = segue("serve", "--model", str(hand_model), "--port", port, *_at(tmp_path))
    assert shown.returncode == 1
    assert shown.stderr.splitlines() == [
        f"segue serve: port {port} of 127.0.0.1 is taken; choose another with --port"
    ]


def test_a_missing_model_is_one_line(tmp_path: Path) -> None:
    shown = segue("serve", "--model", str(tmp_path / "none"), *_at(tmp_path))
    assert shown.returncode == 1
    assert len(shown.stderr.splitlines()) == 1
    assert "none" in shown.stderr


@pytest.mark.parametrize(
    ("flags", "line"),
    [
        (["--max-num-seq", "3"], "unknown argument --max-num-seq; did you mean --max-num-seqs?"),
        (["--max-num-seqs", "x"], "--max-num-seqs (SEGUE_MAX_NUM_SEQS): 'x' is not N"),
        (["--preemption-mode", "swop"], "preemption mode 'swop' is not recompute or swap"),
        (["--listen", "127.0.0.1:1"], "unknown argument --listen"),
    ],
)
def test_a_flag_that_is_refused_is_one_line_and_nothing_was_started(
    hand_model: Path, tmp_path: Path, flags: list[str], line: str
) -> None:
    at = ("--model", str(hand_model), "--port", "0", "--policy", "three_queue", *_at(tmp_path))
    shown = segue("serve", *at, *flags)
    assert shown.returncode == 2
    assert len(shown.stderr.splitlines()) == 1
    assert shown.stderr.startswith(f"segue serve: error: {line}")
    assert not (tmp_path / "state").exists()


def test_help_names_the_flags_that_are_passed_on() -> None:
    shown = segue("serve", "--help").stdout
    for flag in ("--preemption-mode", "--preempt-for-admission", "--long-prefill-token-threshold"):
        assert f"{flag}," in shown


def test_the_state_of_another_model_is_refused_and_fresh_is_offered(
    serve: Serve, hand_model: Path, tmp_path: Path
) -> None:
    serve().stop()
    other = tmp_path / "hand"
    other.mkdir()
    for file in hand_model.iterdir():
        (other / file.name).write_bytes(file.read_bytes())
    config = json.loads((other / "config.json").read_text())
    (other / "config.json").write_text(json.dumps(config | {"changed": True}))
    shown = segue("serve", "--model", str(other), "--port", "0", *_at(tmp_path))
    assert shown.returncode == 1
    assert "the state is of another model" in shown.stderr
    assert "--fresh" in shown.stderr
    serve("--fresh", model=other)


def test_the_state_of_another_block_size_is_refused(
    serve: Serve, hand_model: Path, tmp_path: Path
) -> None:
    serve().stop()
    flags = ("--port", "0", "--block-size", "32", *_at(tmp_path))
    shown = segue("serve", "--model", str(hand_model), *flags)
    assert shown.returncode == 1
    assert "another block size (16, now 32)" in shown.stderr


def test_a_redis_of_ones_own_is_used(serve: Serve, tmp_path: Path, free_port: int) -> None:
    directory = tmp_path / "redis"
    directory.mkdir()
    redis = subprocess.Popen(find_redis().command(directory, free_port), stdout=subprocess.DEVNULL)
    try:
        served = serve("--redis-url", f"redis://127.0.0.1:{free_port}/0")
        assert all(one["name"] != "redis" for one in served.record()["processes"])
        served.stop()
        assert redis.poll() is None
    finally:
        redis.terminate()
        redis.wait()


@pytest.mark.parametrize("name", ["redis", "executor-0", "gateway-0"])
def test_whatever_dies_comes_back(served: Served, name: str) -> None:
    kill_and_wait(served, name)
    body = {"model": served.model, "prompt": "abc", "max_tokens": 5, "ignore_eos": True}
    answer = httpx.post(f"{served.url}/v1/completions", json=body, timeout=60)
    assert answer.status_code == 200


def _at(tmp_path: Path) -> tuple[str, str]:
    return "--state-dir", str(tmp_path / "state")
