"""The shapes that OpenAI's own client expects, from the gateway before a scripted scheduler."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import openai
import pytest

from segue.model_files.hand import write_hand_model
from segue.types import FinishReason, Submission
from tests.running_gateway import RunningGateway, serve_gateway, serve_stub
from tests.scheduler_stub import Reply, SchedulerStub

FAMILY = "👩‍👩‍👧‍👦 漢字"
MESSAGES: Any = [{"role": "user", "content": "hi"}]


def _say(text: str) -> Reply:
    return Reply(text.encode(), FinishReason.STOP)


@pytest.fixture
async def stub() -> SchedulerStub:
    return SchedulerStub(lambda submission: _say(FAMILY))


@pytest.fixture
async def running(stub: SchedulerStub, tmp_path: Path) -> AsyncIterator[RunningGateway]:
    async with serve_stub(stub) as address:
        names = ("hand", "another-name")
        model_dir = write_hand_model(tmp_path)
        async with serve_gateway(model_dir, address, served_model_name=names) as running:
            yield running


async def test_models(running: RunningGateway) -> None:
    listed = await running.openai.models.list()

    assert [model.id for model in listed.data] == ["hand", "another-name"]
    assert (await running.openai.models.retrieve("hand")).object == "model"
    with pytest.raises(openai.NotFoundError):
        await running.openai.models.retrieve("gpt-9")


async def test_chat(running: RunningGateway) -> None:
    answer = await running.openai.chat.completions.create(model="hand", messages=MESSAGES)

    (choice,) = answer.choices
    assert answer.object == "chat.completion"
    assert answer.id.startswith("chatcmpl-")
    assert (choice.message.role, choice.message.content) == ("assistant", FAMILY)
    assert (choice.index, choice.finish_reason, choice.logprobs) == (0, "stop", None)
    assert answer.usage is not None
    num_prompt = len(b"user: hi\nassistant: ")
    assert answer.usage.prompt_tokens == num_prompt
    assert answer.usage.completion_tokens == len(FAMILY.encode())
    assert answer.usage.total_tokens == num_prompt + len(FAMILY.encode())


async def test_chat_stream(running: RunningGateway) -> None:
    stream = await running.openai.chat.completions.create(
        model="hand", messages=MESSAGES, stream=True, stream_options={"include_usage": True}
    )
    chunks = [chunk async for chunk in stream]

    texts = [c.choices[0].delta.content or "" for c in chunks if c.choices]
    reasons = [c.choices[0].finish_reason for c in chunks if c.choices]
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(texts) == FAMILY
    assert all("\ufffd" not in text for text in texts)
    assert [reason for reason in reasons if reason] == ["stop"]
    assert {chunk.object for chunk in chunks} == {"chat.completion.chunk"}
    assert len({chunk.id for chunk in chunks}) == 1
    assert [c.usage is not None for c in chunks] == [False] * (len(chunks) - 1) + [True]
    assert not chunks[-1].choices


async def test_completion_and_its_stream_say_the_same(running: RunningGateway) -> None:
    arguments: dict[str, Any] = {"model": "hand", "prompt": "x", "logprobs": 2}
    whole = (await running.openai.completions.create(**arguments)).choices[0]
    stream = await running.openai.completions.create(**arguments, stream=True)
    parts = [chunk.choices[0] async for chunk in stream]

    assert "".join(part.text for part in parts) == whole.text == FAMILY
    assert whole.logprobs is not None
    told = [part.logprobs for part in parts if part.logprobs is not None]
    for name in ("tokens", "token_logprobs", "text_offset", "top_logprobs"):
        pieces = [item for logprobs in told for item in getattr(logprobs, name)]
        assert pieces == getattr(whole.logprobs, name), name
    assert whole.logprobs.tokens is not None
    assert whole.logprobs.tokens[0] == "bytes:\\xf0"
    assert whole.logprobs.text_offset is not None
    assert whole.logprobs.text_offset[:5] == [0, 0, 0, 0, 1]


async def test_chat_logprobs_have_bytes_and_are_the_same_in_a_stream(
    running: RunningGateway,
) -> None:
    arguments: dict[str, Any] = {"model": "hand", "messages": MESSAGES}
    arguments |= {"logprobs": True, "top_logprobs": 2}
    whole = (await running.openai.chat.completions.create(**arguments)).choices[0]
    stream = await running.openai.chat.completions.create(**arguments, stream=True)

    told = [c.choices[0].logprobs async for c in stream]
    assert whole.logprobs is not None
    content = whole.logprobs.content or []
    pieces = [item for logprobs in told if logprobs for item in logprobs.content or []]
    assert pieces == content
    assert bytes(b for item in content for b in item.bytes or []) == FAMILY.encode()
    assert [top.logprob for top in content[0].top_logprobs] == [-0.5, -1.5]


async def test_n_choices_each_with_one_end(running: RunningGateway, stub: SchedulerStub) -> None:
    stub.reply = lambda submission: _say("abcd"[: submission.choice + 1])
    whole = await running.openai.completions.create(model="hand", prompt=["p", "q"], n=2)
    stream = await running.openai.completions.create(
        model="hand", prompt=["p", "q"], n=2, stream=True
    )
    texts = ["", "", "", ""]
    ends = [0, 0, 0, 0]
    async for chunk in stream:
        for choice in chunk.choices:
            texts[choice.index] += choice.text
            ends[choice.index] += choice.finish_reason is not None

    assert [choice.text for choice in whole.choices] == texts == ["a", "ab", "a", "ab"]
    assert ends == [1, 1, 1, 1]
    assert whole.usage is not None
    assert (whole.usage.prompt_tokens, whole.usage.completion_tokens) == (2, 6)
    assert [len(submit.submissions) for submit in stub.submits] == [4, 4]


async def test_length_is_the_finish_reason_at_max_tokens(
    running: RunningGateway, stub: SchedulerStub
) -> None:
    def cut(submission: Submission) -> Reply:
        limit = submission.sampling_params.max_tokens
        return Reply(b"abcdefgh"[:limit], FinishReason.LENGTH)

    stub.reply = cut
    answer = await running.openai.chat.completions.create(
        model="hand", messages=MESSAGES, max_completion_tokens=3, max_tokens=5
    )

    assert answer.choices[0].finish_reason == "length"
    assert answer.choices[0].message.content == "abc"


async def test_token_ids_agree_with_the_text(running: RunningGateway, stub: SchedulerStub) -> None:
    """With a stop string, the ids end with the token that completed it."""
    stub.reply = lambda submission: _say("ab##c")
    extra = {"return_token_ids": True}
    answer = await running.openai.completions.create(
        model="hand", prompt="xy", stop="##", extra_body=extra
    )
    stream = await running.openai.completions.create(
        model="hand", prompt="xy", stop="##", stream=True, extra_body=extra
    )
    streamed = [i async for c in stream for i in getattr(c.choices[0], "token_ids", [])]

    choice: Any = answer.choices[0]
    assert (choice.text, choice.finish_reason, choice.stop_reason) == ("ab", "stop", "##")
    assert bytes(choice.token_ids) == b"ab##"
    assert bytes(choice.prompt_token_ids) == b"xy"
    assert streamed == choice.token_ids
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 4


async def test_errors_are_the_clients_own_kinds(running: RunningGateway) -> None:
    create: Any = running.openai.chat.completions.create

    with pytest.raises(openai.NotFoundError) as no_model:
        await create(model="gpt-9", messages=MESSAGES)
    with pytest.raises(openai.BadRequestError) as too_long:
        await create(model="hand", messages=MESSAGES, max_tokens=5000)
    with pytest.raises(openai.BadRequestError) as wrong_type:
        await create(model="hand", messages="hi")

    assert no_model.value.code == "model_not_found"
    assert too_long.value.code == "context_length_exceeded"
    assert (wrong_type.value.param, wrong_type.value.type) == ("messages", "invalid_request_error")


async def test_an_error_in_the_middle_of_a_stream_is_raised_by_the_client(
    running: RunningGateway, stub: SchedulerStub
) -> None:
    stub.reply = lambda submission: Reply(b"ab", FinishReason.ERROR)
    stream = await running.openai.completions.create(model="hand", prompt="x", stream=True)

    with pytest.raises(openai.APIError):
        async for _ in stream:
            pass


async def test_the_callers_request_id_comes_back_in_the_header_only(
    running: RunningGateway,
) -> None:
    headers = {"X-Request-Id": "mine"}
    body = {"prompt": "x"}
    first = await running.http.post("/v1/completions", json=body, headers=headers)
    second = await running.http.post("/v1/completions", json=body, headers=headers)
    refused = await running.http.post("/v1/completions", content=b"{", headers=headers)
    missing = await running.http.get("/nowhere", headers=headers)

    for response in (first, second, refused, missing):
        assert response.headers["x-request-id"] == "mine"
    assert first.json()["id"] != second.json()["id"]
    assert missing.json()["error"]["type"] == "invalid_request_error"
