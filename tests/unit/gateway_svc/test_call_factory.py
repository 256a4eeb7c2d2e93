"""From a request body to a call that can be submitted twice and mean the same."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gateway_svc.api_error import ApiError
from gateway_svc.call import Call, CallKind, CallShape
from gateway_svc.call_factory import Caller, CallFactory
from gateway_svc.openai_api import ChatCompletionRequest, CompletionRequest, parse
from gateway_svc.tokenizer import Tokenizer
from segue.model_files.hand import EOS_TOKEN_ID, VOCAB_SIZE, write_hand_model
from segue.model_files.model_directory import ModelDirectory

MAX_MODEL_LEN = 64


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return write_hand_model(tmp_path)


@pytest.fixture
def factory(directory: Path) -> CallFactory:
    tokenizer = Tokenizer(directory / "tokenizer.json", VOCAB_SIZE)
    model = ModelDirectory.load(directory)
    return CallFactory(model, tokenizer, ("hand", "alias"), lambda: MAX_MODEL_LEN)


def _complete(factory: CallFactory, **fields: Any) -> Call:
    body = json.dumps({"prompt": "ab", **fields}).encode()
    return factory.completion(parse(CompletionRequest, body), Caller())


def _chat(factory: CallFactory, **fields: Any) -> Call:
    messages = [{"role": "user", "content": "hi"}]
    body = json.dumps({"messages": messages, **fields}).encode()
    return factory.chat(parse(ChatCompletionRequest, body), Caller(traceparent="00-a-b-01"))


def _refusal(factory: CallFactory, **fields: Any) -> ApiError:
    with pytest.raises(ApiError) as caught:
        _chat(factory, **fields) if "messages" in fields else _complete(factory, **fields)
    return caught.value


def test_everything_is_decided_before_it_is_submitted(factory: CallFactory) -> None:
    (submission,) = _chat(factory).submissions

    params = submission.sampling_params
    assert bytes(submission.prompt_token_ids) == b"user: hi\nassistant: "
    assert params.max_tokens == MAX_MODEL_LEN - len(submission.prompt_token_ids)
    assert params.eos_token_id == EOS_TOKEN_ID
    assert submission.traceparent == "00-a-b-01"
    assert submission.arrival_unix_ms > 0
    assert _chat(factory).submissions[0].sampling_params.seed != params.seed


def test_each_call_has_an_id_of_its_own_and_choices_derive_theirs(factory: CallFactory) -> None:
    call = _complete(factory, n=2, prompt=["a", "b"], seed=-1)

    assert call.call_id != _complete(factory).call_id
    assert [s.request_id for s in call.submissions] == [f"{call.call_id}-{i}" for i in range(4)]
    assert [(s.prompt_token_ids, s.choice) for s in call.submissions] == [
        ((97,), 0),
        ((97,), 1),
        ((98,), 0),
        ((98,), 1),
    ]
    assert {(s.group_id, s.group_size) for s in call.submissions} == {(call.call_id, 4)}
    assert call.submissions[0].sampling_params.seed == 2**64 - 1
    assert call.num_prompt_tokens == 2


def test_the_shape_of_the_answer_can_be_read_back_from_a_submission(factory: CallFactory) -> None:
    options = {"include_usage": True}
    call = _complete(factory, stop=["漢", "x"], stream=True, stream_options=options)

    submission = call.submissions[0]
    assert CallShape.from_context(submission.client_context) == call.shape
    assert call.shape.kind is CallKind.COMPLETION
    assert call.shape.include_usage
    assert submission.is_resumable


def test_prompts_come_as_text_or_ids_or_lists_of_either(factory: CallFactory) -> None:
    forms: list[Any] = ["ab", ["ab"], [97, 98], [[97, 98]]]

    prompts = [_complete(factory, prompt=form).submissions[0].prompt_token_ids for form in forms]

    assert prompts == [(97, 98)] * 4


def test_null_and_newer_names_of_max_tokens(factory: CallFactory) -> None:
    def max_tokens(**fields: Any) -> int:
        return _chat(factory, **fields).submissions[0].sampling_params.max_tokens

    assert max_tokens(max_tokens=None) == MAX_MODEL_LEN - len("user: hi\nassistant: ")
    assert max_tokens(max_tokens=5) == 5
    assert max_tokens(max_completion_tokens=6, max_tokens=5) == 6
    assert _complete(factory).submissions[0].sampling_params.max_tokens == 16


def test_ignore_eos_leaves_only_the_clients_own_stop_tokens(directory: Path) -> None:
    (directory / "generation_config.json").write_text('{"eos_token_id": [257, 10]}')
    model = ModelDirectory.load(directory)
    tokenizer = Tokenizer(directory / "tokenizer.json", VOCAB_SIZE)
    factory = CallFactory(model, tokenizer, ("hand",), lambda: MAX_MODEL_LEN)

    def ends(**fields: Any) -> tuple[int | None, tuple[int, ...]]:
        params = _complete(factory, stop_token_ids=[5], **fields).submissions[0].sampling_params
        return params.eos_token_id, params.stop_token_ids

    assert ends() == (257, (5, 10))
    assert ends(ignore_eos=True) == (None, (5,))


def test_the_models_own_sampling_is_the_default(directory: Path) -> None:
    (directory / "generation_config.json").write_text('{"temperature": 0.6, "top_k": 20}')
    tokenizer = Tokenizer(directory / "tokenizer.json", VOCAB_SIZE)
    model = ModelDirectory.load(directory)
    factory = CallFactory(model, tokenizer, ("hand",), lambda: MAX_MODEL_LEN)

    params = _complete(factory, top_k=-1).submissions[0].sampling_params

    assert (params.temperature, params.top_k) == (0.6, 0)


@pytest.mark.parametrize(
    "fields, status, code, param",
    [
        ({"model": "gpt-9"}, 404, "model_not_found", "model"),
        ({"max_tokens": 63}, 400, "context_length_exceeded", "prompt"),
        ({"prompt": "x" * 64}, 400, "context_length_exceeded", "prompt"),
        ({"prompt": "x" * 100_000}, 400, "context_length_exceeded", "prompt"),
        ({"prompt": [VOCAB_SIZE]}, 400, "invalid_value", "prompt"),
        ({"prompt": [-1]}, 400, "invalid_value", "prompt"),
        ({"prompt": ""}, 400, None, "prompt"),
        ({"prompt": []}, 400, None, "prompt"),
        ({"prompt": [[1], []]}, 400, None, "prompt"),
        ({"stop_token_ids": [VOCAB_SIZE]}, 400, "invalid_value", "stop_token_ids"),
        ({"logit_bias": {"999": 1}}, 400, "invalid_value", "logit_bias"),
        ({"logit_bias": {"a": 1}}, 400, None, "logit_bias"),
        ({"logit_bias": {"1": 101}}, 400, "invalid_value", "logit_bias"),
        ({"logit_bias": {"1" * 5000: 1}}, 400, None, "logit_bias"),
        ({"stop": ["a", "b", "c", "d", "e"]}, 400, "invalid_value", "stop"),
        ({"stop": "x" * 1025}, 400, "invalid_value", "stop"),
        ({"stop": ["x", "x" * 1025]}, 400, "invalid_value", "stop"),
        ({"cache_salt": "x" * 1025}, 400, "invalid_value", "cache_salt"),
        ({"stop": ""}, 400, "invalid_value", "stop"),
        ({"temperature": "hot"}, 400, "invalid_value", "temperature"),
        ({"temperature": -0.1}, 400, "invalid_value", "temperature"),
        ({"top_p": 0}, 400, "invalid_value", "top_p"),
        ({"n": 0}, 400, "invalid_value", "n"),
        ({"n": 100, "prompt": ["a", "b"]}, 400, None, "n"),
        ({"min_tokens": 17}, 400, None, "min_tokens"),
        ({"echo": True}, 400, "unsupported_parameter", "echo"),
        ({"suffix": "x"}, 400, "unsupported_parameter", "suffix"),
        ({"best_of": 3}, 400, "unsupported_parameter", "best_of"),
        ({"kv_transfer_params": {}}, 400, "unsupported_parameter", "kv_transfer_params"),
        ({"lora_request": {"name": "a"}}, 400, "unsupported_parameter", "lora_request"),
        ({"mm_processor_kwargs": {}}, 400, "unsupported_parameter", "mm_processor_kwargs"),
        ({"stream_options": {}}, 400, None, "stream_options"),
        ({"messages": []}, 400, "invalid_value", "messages"),
        ({"messages": [{"content": "x"}]}, 400, "missing_required_parameter", "messages"),
        ({"messages": [{"role": "user", "content": 5}]}, 400, "invalid_value", "messages"),
    ],
)
def test_what_is_wrong_is_named(
    factory: CallFactory, fields: dict[str, Any], status: int, code: str | None, param: str
) -> None:
    error = _refusal(factory, **fields)

    assert (error.status, error.code, error.param) == (status, code, param)
    assert error.message


def test_content_in_parts_is_joined_and_pictures_are_refused(factory: CallFactory) -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    call = _chat(factory, messages=[{"role": "user", "content": parts}])

    assert bytes(call.submissions[0].prompt_token_ids).startswith(b"user: ab\n")
    picture = [{"type": "image_url", "image_url": {"url": "x"}}]
    assert _refusal(factory, messages=[{"role": "user", "content": picture}]).status == 400


def test_a_template_that_refuses_is_the_clients_error(directory: Path) -> None:
    (directory / "chat_template.jinja").write_text("{{ raise_exception('roles must alternate') }}")
    model = ModelDirectory.load(directory)
    tokenizer = Tokenizer(directory / "tokenizer.json", VOCAB_SIZE)
    factory = CallFactory(model, tokenizer, ("hand",), lambda: MAX_MODEL_LEN)

    error = _refusal(factory, messages=[{"role": "user", "content": "hi"}])

    assert (error.status, error.param) == (400, "messages")
    assert "roles must alternate" in error.message


@pytest.mark.parametrize(
    "body", [b"{", b"", b"[1]", b"\xff", b'{"prompt": "\\ud800"}', b"[" * 9999]
)
def test_a_body_that_is_no_object_is_refused(body: bytes) -> None:
    with pytest.raises(ApiError) as caught:
        parse(CompletionRequest, body)

    assert caught.value.status == 400


def test_unknown_fields_are_ignored(factory: CallFactory) -> None:
    assert _complete(factory, made_up=[1], user="me").submissions


def test_a_call_that_no_session_could_carry_is_refused(
    factory: CallFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway_svc.call_factory.MAX_CALL_BYTES", 100_000)
    biases = {str(token_id): 1 for token_id in range(VOCAB_SIZE)}

    _complete(factory, n=20, logit_bias=biases)
    error = _refusal(factory, n=40, logit_bias=biases)

    assert (error.status, error.param) == (400, "n")


def test_a_prompt_that_is_far_too_long_is_not_even_cut_into_tokens(
    factory: CallFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    def encode(*_: Any, **__: Any) -> list[int]:
        pytest.fail("was encoded")

    monkeypatch.setattr(Tokenizer, "encode", encode)
    message = {"role": "user", "content": "x" * 100_000}
    for fields in ({"prompt": "x" * 100_000}, {"messages": [message]}):
        error = _refusal(factory, **fields)
        assert (error.status, error.code) == (400, "context_length_exceeded")
