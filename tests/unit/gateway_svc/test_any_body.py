"""Nothing that a client sends is our fault: it becomes a call, or an error of the client's."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway_svc.api_error import ApiError
from gateway_svc.call import Call, CallShape
from gateway_svc.call_factory import Caller, CallFactory
from gateway_svc.openai_api import ChatCompletionRequest, CompletionRequest, parse
from gateway_svc.tokenizer import Tokenizer
from segue import wire
from segue.model_files.hand import VOCAB_SIZE, write_hand_model
from segue.model_files.model_directory import ModelDirectory

FIELDS = sorted({*CompletionRequest.model_fields, *ChatCompletionRequest.model_fields, "made_up"})
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.integers(-2, 300)
    | st.floats()
    | st.floats(0, 2)
    | st.text(max_size=8)
    | st.sampled_from(["hand", "user", "text", "x" * 5000]),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from(["role", "content", "type", "text", "5", "999"]), inner)
    ),
    max_leaves=8,
)
BODIES = st.dictionaries(st.sampled_from(FIELDS), JSON, max_size=5)
VALID: dict[str, Any] = {"prompt": "a", "messages": [{"role": "user", "content": "hi"}]}


@pytest.fixture(scope="module")
def factory(tmp_path_factory: pytest.TempPathFactory) -> CallFactory:
    directory = write_hand_model(tmp_path_factory.mktemp("hand"))
    tokenizer = Tokenizer(directory / "tokenizer.json", VOCAB_SIZE)
    return CallFactory(ModelDirectory.load(directory), tokenizer, ("hand",), lambda: 4096)


def _outcome(make: Callable[[], Call]) -> Call | ApiError:
    try:
        return make()
    except ApiError as error:
        return error


def _check(factory: CallFactory, body: bytes) -> None:
    for make in (
        lambda: factory.completion(parse(CompletionRequest, body), Caller()),
        lambda: factory.chat(parse(ChatCompletionRequest, body), Caller()),
    ):
        outcome = _outcome(make)
        if isinstance(outcome, ApiError):
            assert outcome.status in (400, 404)
            assert outcome.message
            assert json.loads(json.dumps(outcome.body()))["error"]["type"]
            continue
        for submission in outcome.submissions:  # can be sent, and read back by another gateway
            assert wire.decode_submission(wire.encode_submission(submission)) == submission
            assert CallShape.from_context(submission.client_context) == outcome.shape


@settings(max_examples=150, deadline=None)
@given(body=BODIES, is_valid_else=st.booleans())
def test_any_json(factory: CallFactory, body: dict[str, Any], is_valid_else: bool) -> None:
    _check(factory, json.dumps((VALID if is_valid_else else {}) | body).encode())


@settings(max_examples=100, deadline=None)
@given(body=st.binary(max_size=60))
def test_any_bytes(factory: CallFactory, body: bytes) -> None:
    _check(factory, body)
