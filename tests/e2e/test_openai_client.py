"""The official client, unmodified, against all processes and the hand model."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from openai import OpenAI

from tests.served import Served

GREEDY: dict[str, Any] = {"temperature": 0, "extra_body": {"ignore_eos": True}}


@pytest.fixture(scope="module")
def served(hand_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    state_dir = tmp_path_factory.mktemp("serve") / "state"
    running = Served(hand_model, state_dir, ["--num-blocks", "200", "--max-queued-requests", "8"])
    yield running
    running.stop()
    print(running.log()[-20_000:])  # shown where the test failed


@pytest.fixture
def client(served: Served) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0, timeout=30) as client:
        yield client


def by_hand(prompt: bytes, num_tokens: int) -> bytes:
    """What the hand model answers: each token is the sum of (position + 1) x token, mod 256."""
    tokens = list(prompt)
    for _ in range(num_tokens):
        tokens.append(sum((p + 1) * t for p, t in enumerate(tokens)) % 256)
    return bytes(tokens[len(prompt) :])


def test_a_completion_is_what_can_be_worked_out_by_hand(client: OpenAI, served: Served) -> None:
    answer = client.completions.create(
        model=served.model, prompt="hello world", max_tokens=40, **GREEDY
    )
    expected = by_hand(b"hello world", 40).decode(errors="replace")
    assert answer.choices[0].text == expected
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (11, 40)


def test_streamed_and_whole_are_the_same(client: OpenAI, served: Served) -> None:
    messages: list[Any] = [{"role": "user", "content": "What is a segue?"}]
    asked: dict[str, Any] = {
        "model": served.model,
        "messages": messages,
        "max_tokens": 60,
        "seed": 7,
    }
    whole = client.chat.completions.create(**asked, extra_body={"ignore_eos": True})
    chunks = client.chat.completions.create(
        **asked,
        stream=True,
        stream_options={"include_usage": True},
        extra_body={"ignore_eos": True},
    )
    text = ""
    reasons: list[str | None] = []
    usages: list[Any] = []
    for chunk in chunks:
        for choice in chunk.choices:
            text += choice.delta.content or ""
            reasons.append(choice.finish_reason)
        usages.append(chunk.usage)
    assert text == whole.choices[0].message.content
    assert [reason for reason in reasons if reason] == ["length"]
    assert usages[-1] is not None
    assert whole.usage is not None
    assert usages[-1].completion_tokens == whole.usage.completion_tokens == 60
    assert usages[-1].prompt_tokens == whole.usage.prompt_tokens


def test_choices_differ_and_are_repeatable(client: OpenAI, served: Served) -> None:
    def texts() -> list[str]:
        answer = client.completions.create(
            model=served.model,
            prompt="four of them",
            n=4,
            seed=1,
            temperature=1.5,
            max_tokens=30,
            extra_body={"ignore_eos": True},
        )
        assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
        return [choice.text for choice in answer.choices]

    first = texts()
    assert texts() == first


def test_a_stop_string_is_not_shown(client: OpenAI, served: Served) -> None:
    expected = by_hand(b"stop somewhere", 60).decode(errors="replace")
    stop = expected[20:23]
    answer = client.completions.create(
        model=served.model, prompt="stop somewhere", max_tokens=60, stop=[stop], **GREEDY
    )
    assert answer.choices[0].text == expected[: expected.index(stop)]
    assert answer.choices[0].finish_reason == "stop"


def test_models_are_listed(client: OpenAI, served: Served) -> None:
    assert [model.id for model in client.models.list()] == [served.model]


def test_the_second_answer_to_a_prompt_comes_from_the_cache(client: OpenAI, served: Served) -> None:
    prompt = "a prompt that is longer than three blocks of sixteen tokens, for certain"
    cached = []
    for _ in range(2):
        answer = client.completions.create(
            model=served.model, prompt=prompt, max_tokens=2, **GREEDY
        )
        assert answer.usage is not None
        assert answer.usage.prompt_tokens_details is not None
        cached.append(answer.usage.prompt_tokens_details.cached_tokens)
    assert cached == [0, (len(prompt) - 1) // 16 * 16]


@pytest.mark.parametrize(
    ("asked", "error"),
    [
        ({"model": "nobody"}, openai.NotFoundError),
        ({"prompt": [300]}, openai.BadRequestError),
        ({"prompt": [-1]}, openai.BadRequestError),
        ({"prompt": ""}, openai.BadRequestError),
        ({"prompt": "x" * 5000}, openai.BadRequestError),
        ({"max_tokens": 0}, openai.BadRequestError),
        ({"temperature": "hot"}, openai.BadRequestError),
    ],
)
def test_what_cannot_be_done_is_said(
    client: OpenAI, served: Served, asked: dict[str, Any], error: type[openai.APIStatusError]
) -> None:
    with pytest.raises(error) as raised:
        client.completions.create(**{"model": served.model, "prompt": "x", "max_tokens": 5} | asked)
    assert raised.value.body
    answer = client.completions.create(model=served.model, prompt="ok", max_tokens=3, **GREEDY)
    assert answer.choices[0].text == by_hand(b"ok", 3).decode(errors="replace")


def test_a_full_queue_says_when_to_come_back(client: OpenAI, served: Served) -> None:
    with pytest.raises(openai.RateLimitError) as raised:
        client.completions.create(model=served.model, prompt="too many", n=9, max_tokens=2)
    assert int(raised.value.response.headers["retry-after"]) >= 1
