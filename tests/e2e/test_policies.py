"""The other policy, through all processes."""

from __future__ import annotations

from pathlib import Path

from openai import OpenAI

from tests.served import Served


def test_three_queue_serves(hand_model: Path, tmp_path: Path) -> None:
    """Few blocks, so that it preempts by recomputation too."""
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
