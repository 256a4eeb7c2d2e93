"""Rows come in order and are never replaced; a cursor continues exactly what a client saw."""

from __future__ import annotations

import pytest

from gateway_svc.choice import Choice, ChoiceEnd, RowGap, RowMismatch
from gateway_svc.cursor import ChoiceCursor, Position, Standing
from gateway_svc.detokenizer import TextRules
from gateway_svc.tokenizer import Tokenizer
from segue.model_files.hand import VOCAB_SIZE, write_hand_model
from segue.types import Finish, FinishReason, RequestOutput, SamplingParams, Submission, Usage

SUBMISSION = Submission("cmpl-1-0", (1,), SamplingParams(seed=1, max_tokens=100), 0)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    directory = write_hand_model(tmp_path_factory.mktemp("hand"))
    return Tokenizer(directory / "tokenizer.json", VOCAB_SIZE)


@pytest.fixture
def choice(tokenizer: Tokenizer) -> Choice:
    return Choice(SUBMISSION, tokenizer, TextRules(stops=("##",)))


def _rows(first_index: int, text: bytes, reason: FinishReason | None = None) -> RequestOutput:
    finish = None if reason is None else Finish(reason, Usage(1, first_index + len(text)))
    return RequestOutput("cmpl-1-0", first_index, tuple(text), finish=finish)


def test_rows_that_overlap_are_taken_once(choice: Choice) -> None:
    assert [choice.receive(_rows(0, b"ab")), choice.receive(_rows(1, b"bcd"))] == [2, 2]
    assert choice.receive(_rows(0, b"abc")) == 0
    assert choice.shown_text == "abcd"


def test_a_gap_is_refused(choice: Choice) -> None:
    choice.receive(_rows(0, b"ab"))
    with pytest.raises(RowGap):
        choice.receive(_rows(3, b"d"))


def test_a_contradiction_is_refused_and_changes_nothing(choice: Choice) -> None:
    choice.receive(_rows(0, b"ab"))
    with pytest.raises(RowMismatch):
        choice.receive(_rows(1, b"Xc"))
    assert (choice.token_ids, choice.shown_text) == ([*b"ab"], "ab")


def test_the_end_may_come_alone(choice: Choice) -> None:
    choice.receive(_rows(0, b"ab#"))
    assert choice.shown_text == "ab"
    choice.receive(_rows(3, b"", FinishReason.LENGTH))

    assert (choice.shown_text, choice.end) == ("ab#", ChoiceEnd(FinishReason.LENGTH))
    assert choice.is_settled


def test_rows_behind_a_stop_string_are_kept_and_not_shown(choice: Choice) -> None:
    """They are delivered, so they belong to what is handed over; the answer ends before them."""
    choice.receive(_rows(0, b"ab##cd"))

    assert (choice.shown_text, choice.num_answer_tokens) == ("ab", 4)
    assert choice.end == ChoiceEnd(FinishReason.STOP, "##")
    assert not choice.is_settled
    assert bytes(choice.attachment().delivered_token_ids) == b"ab##cd"
    choice.receive(_rows(6, b"", FinishReason.ABORT))
    assert choice.end == ChoiceEnd(FinishReason.STOP, "##")
    assert choice.is_settled


def test_a_cursor_tells_each_thing_once(choice: Choice) -> None:
    cursor = ChoiceCursor(0, choice)
    assert cursor.take() is None
    choice.receive(_rows(0, b"ab#"))
    first = cursor.take()
    choice.receive(_rows(3, b"c", FinishReason.LENGTH))
    second = cursor.take()

    assert first is not None
    assert second is not None
    assert (first.text, first.num_tokens, first.end) == ("ab", 3, None)
    assert (second.text, second.first_token, second.num_tokens) == ("#c", 3, 1)
    assert second.end is not None
    assert cursor.is_done
    assert cursor.take() is None


@pytest.mark.parametrize("cut", range(6))
def test_a_cursor_from_any_position_continues_it(choice: Choice, cut: int) -> None:
    text = b"ab#c\xc3\xa9"
    first = ChoiceCursor(0, choice)
    choice.receive(_rows(0, text[:cut]))
    seen = first.take()
    start = first.position()
    choice.receive(_rows(cut, text[cut:], FinishReason.STOP))
    second = ChoiceCursor(0, choice, start)

    assert second.standing() is Standing.SAME
    rest = second.take()
    assert rest is not None
    assert (seen.text if seen else "") + rest.text == text.decode()


def test_a_cursor_ahead_waits_until_it_is_computed_again(choice: Choice) -> None:
    start = Position(3, 3, "b5d4045c3f466fa9", False)
    cursor = ChoiceCursor(0, choice, start)
    choice.receive(_rows(0, b"ab"))

    assert cursor.standing() is Standing.BEHIND
    assert cursor.position() == start


def test_other_ids_or_an_earlier_end_have_diverged(choice: Choice, tokenizer: Tokenizer) -> None:
    seen = Choice(SUBMISSION, tokenizer, TextRules())
    seen.receive(_rows(0, b"abc"))
    cursor = ChoiceCursor(0, seen)
    cursor.take()
    choice.receive(_rows(0, b"abX"))
    assert ChoiceCursor(0, choice, cursor.position()).standing() is Standing.DIVERGED

    ended = Choice(SUBMISSION, tokenizer, TextRules())
    ended.receive(_rows(0, b"ab", FinishReason.LENGTH))
    assert ChoiceCursor(0, ended, cursor.position()).standing() is Standing.DIVERGED


def test_an_end_that_a_client_claims_is_no_end_while_the_rest_is_not_there(choice: Choice) -> None:
    claimed = Position(num_tokens=3, num_chars=1, digest="deadbeefdeadbeef", is_finished=True)
    cursor = ChoiceCursor(0, choice, claimed)
    choice.receive_token(0, 97)
    assert (cursor.standing(), cursor.is_done) == (Standing.BEHIND, False)
    for index in (1, 2):
        choice.receive_token(index, 97)
    assert (cursor.standing(), cursor.is_done) == (Standing.DIVERGED, False)
