"""The other policy, through all processes."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from openai import APITimeoutError, BadRequestError, OpenAI

from scheduler_svc.config import SchedulerServiceConfig
from segue.config import parse_config, to_flags
from tests.served import Served, wait_until

THREE_QUEUE = {
    "policy": "three_queue",
    "preemption_mode": "swap",
    "delay_factor": 0.5,
    "max_paddings": 512,
    "max_num_seqs": 7,
    "watermark": 0.02,
}
PRIORITY = {
    "scheduling_policy": "priority",
    "preempt_for_admission": True,
    "priority_aging_s": 30.0,
    "max_num_batched_tokens": 512,
    "long_prefill_token_threshold": 64,
    "async_scheduling": False,
}


MY_POLICY = """
from examples.shortest_job_first import ShortestJobFirst


class MyPolicy(ShortestJobFirst):
    pass
"""


BROKEN_POLICY = """
from scheduler_svc.core.unified.scheduler import UnifiedScheduler


class MyPolicy(UnifiedScheduler):
    def schedule(self, key, generation, traceparent=""):
        if self.num_unfinished():
            raise RuntimeError("it has a bug")
        return super().schedule(key, generation, traceparent)
"""


def test_a_policy_in_a_file_of_ones_own_serves(
    hand_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As docs/policies.md says. With one seat, the shorter prompts of a call go first."""
    (tmp_path / "mymodule.py").write_text(MY_POLICY)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    flags = ["--policy", "mymodule:MyPolicy", "--max-num-seqs", "1"]
    served = Served(hand_model, tmp_path / "state", flags)
    try:
        with OpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0) as client:
            stream = client.completions.create(
                model=served.model,
                prompt=["the longest of three prompts", "a middle one", "short"],
                max_tokens=4,
                stream=True,
                extra_body={"ignore_eos": True},
            )
            order = list(dict.fromkeys(chunk.choices[0].index for chunk in stream))
        assert order == [2, 1, 0]
    finally:
        served.stop()
        print(served.log()[-20_000:])  # shown where the test failed


def test_a_policy_that_raises_is_named_at_each_restart(
    hand_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The scheduler comes back each time, and ends with the first step while a client waits."""
    (tmp_path / "mymodule.py").write_text(BROKEN_POLICY)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    served = Served(hand_model, tmp_path / "state", ["--policy", "mymodule:MyPolicy"])
    said = "scheduler-0 ended as soon as it was back (exit code 1): RuntimeError: it has a bug"
    try:
        with (
            OpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0) as client,
            pytest.raises(APITimeoutError),
        ):
            client.completions.create(model=served.model, prompt="x", timeout=5.0)
        wait_until(lambda: said in served.log(), said)
    finally:
        served.stop()
        print(served.log()[-20_000:])  # shown where the test failed


def test_three_queue_serves(hand_model: Path, tmp_path: Path) -> None:
    """Few blocks, so that it preempts by recomputation too. Who is too long is told so."""
    flags = ["--policy", "three_queue", "--num-blocks", "12", "--max-model-len", "128"]
    served = Served(hand_model, tmp_path / "state", flags)
    try:
        with OpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0) as client:
            answer = client.completions.create(
                model=served.model,
                prompt=["one prompt", "another prompt", "a third", "and a fourth"],
                max_tokens=60,
                temperature=0,
                extra_body={"ignore_eos": True, "return_token_ids": True},
            )
            with pytest.raises(BadRequestError, match="is 128 tokens; the prompt has 300"):
                client.completions.create(model=served.model, prompt="x" * 300, max_tokens=1)
        for choice, prompt in zip(
            answer.choices, ("one prompt", "another prompt", "a third", "and a fourth"), strict=True
        ):
            tokens = list(prompt.encode())
            for _ in range(60):
                tokens.append(sum((p + 1) * t for p, t in enumerate(tokens)) % 256)
            assert getattr(choice, "token_ids", None) == tokens[len(prompt) :]
    finally:
        served.stop()
        print(served.log()[-20_000:])  # shown where the test failed


@pytest.mark.parametrize("wanted", [THREE_QUEUE, PRIORITY])
def test_flags_of_the_scheduler_reach_it_through_serve(
    hand_model: Path, tmp_path: Path, wanted: dict[str, Any]
) -> None:
    """It is ready, so it took its command line; this is what that says."""
    served = Served(hand_model, tmp_path / "state", to_flags(SimpleNamespace(**wanted), [*wanted]))
    try:
        command = Path(f"/proc/{served.pid('scheduler-0')}/cmdline").read_text().split("\0")
        config = parse_config(SchedulerServiceConfig, command[3:-1], {})
        assert {name: getattr(config, name) for name in wanted} == wanted
        assert served.get_status("/ready") == 200
    finally:
        served.stop()
