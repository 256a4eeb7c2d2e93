"""Swapping out to the CPU, through all processes: copied, copied back, never recomputed."""

from __future__ import annotations

from pathlib import Path

from openai import OpenAI

from tests.served import Served

PROMPTS = ["one prompt", "another prompt", "a third", "and a fourth"]
NUM_TOKENS = 60


def undisturbed(prompt: str) -> list[int]:
    tokens = list(prompt.encode())
    for _ in range(NUM_TOKENS):
        tokens.append(sum((p + 1) * t for p, t in enumerate(tokens)) % 256)
    return tokens[len(prompt) :]


def test_swapped_requests_go_on_where_they_were(hand_model: Path, tmp_path: Path) -> None:
    flags = ["--policy", "three_queue", "--preemption-mode", "swap", "--max-model-len", "128"]
    flags += ["--num-blocks", "12", "--num-cpu-blocks", "20"]
    served = Served(hand_model, tmp_path / "state", flags)
    try:
        with OpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0) as client:
            answer = client.completions.create(
                model=served.model,
                prompt=PROMPTS,
                max_tokens=NUM_TOKENS,
                temperature=0,
                extra_body={"ignore_eos": True, "return_token_ids": True},
            )
        for choice, prompt in zip(answer.choices, PROMPTS, strict=True):
            assert getattr(choice, "token_ids", None) == undisturbed(prompt)
        counts = served.metrics("scheduler-0")
        assert counts["vllm:num_preemptions_total"] > 0
        assert counts["segue:tokens_recomputed_total"] == 0
    finally:
        served.stop()
        print(served.log()[-20_000:])  # shown where the test failed
