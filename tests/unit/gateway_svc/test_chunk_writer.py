"""A chunk that is put together is the chunk that would have been made, byte for byte."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gateway_svc.answers import Answer
from gateway_svc.call import Call, CallKind, CallShape
from gateway_svc.choice import ChoiceEnd
from gateway_svc.chunk_writer import ChunkWriter
from gateway_svc.cursor import ChoiceDelta
from gateway_svc.live_call import LiveCall
from gateway_svc.sse import to_json
from gateway_svc.tokenizer import Tokenizer
from segue.model_files.hand import VOCAB_SIZE, write_hand_model
from segue.types import FinishReason, SamplingParams, Submission

TEXTS = ("a", 'say "text":"" and\\n', "漢字 é \u2028 \x00\x1f", "</script>\t\r\n", "")
MODEL = 'm","content":""'
SHAPES = (
    {},
    {"include_usage": True},
    {"include_usage": True, "continuous_usage": True},
    {"return_token_ids": True},
)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    directory = write_hand_model(tmp_path_factory.mktemp("hand"))
    return Tokenizer(directory / "tokenizer.json", VOCAB_SIZE)


@pytest.mark.parametrize("fields", SHAPES, ids=lambda fields: "+".join(fields) or "plain")
@pytest.mark.parametrize("kind", list(CallKind))
def test_every_chunk_is_the_answers_own(
    tokenizer: Tokenizer, kind: CallKind, fields: dict[str, bool]
) -> None:
    shape = replace(CallShape(kind, MODEL, 1, 2), **fields)
    params = SamplingParams(seed=1, max_tokens=9)
    submissions = tuple(Submission(f"c-{i}", (1, 2), params, 1, choice=i) for i in range(2))
    live = LiveCall.new(Call("c", shape, submissions), tokenizer)
    answer = Answer(live, tokenizer)
    chunks = ChunkWriter(live, answer)
    ends = (None, ChoiceEnd(FinishReason.STOP, 'stop"'))
    for delta in [
        ChoiceDelta(i, 0, 0, text, end) for text in TEXTS for end in ends for i in (0, 1)
    ]:
        made = answer.next(delta)
        assert chunks.next(delta) == (None if made is None else to_json(made))
