"""Text is a pure function of token ids: never half a character, never part of a stop string."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway_svc.detokenizer import Detokenizer, TextRules
from gateway_svc.tokenizer import Tokenizer
from segue.model_files.hand import EOS_TOKEN_ID, VOCAB_SIZE, write_hand_model


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    directory = write_hand_model(tmp_path_factory.mktemp("hand"))
    return Tokenizer(directory / "tokenizer.json", VOCAB_SIZE)


def _shown(tokenizer: Tokenizer, token_ids: list[int], rules: TextRules) -> list[str]:
    """What a client has seen after each token, and after the end."""
    detokenizer = Detokenizer(tokenizer, rules)
    seen: list[str] = []
    for token_id in token_ids:
        detokenizer.append(token_id)
        seen.append(detokenizer.text[: detokenizer.num_safe_chars])
        if detokenizer.stopped_by is not None:
            break
    detokenizer.flush()
    return [*seen, detokenizer.text]


@pytest.mark.parametrize("text", ["👩‍👩‍👧‍👦漢字", "é", "a\u0300b", "한국어 ok"])
def test_half_a_character_is_never_shown(tokenizer: Tokenizer, text: str) -> None:
    seen = _shown(tokenizer, list(text.encode()), TextRules())

    assert seen[-1] == text
    assert all(text.startswith(shown) for shown in seen)


def test_half_a_character_at_the_end_is_flushed_once(tokenizer: Tokenizer) -> None:
    seen = _shown(tokenizer, list("ab👩".encode())[:-1], TextRules())

    assert seen == ["a", "ab", "ab", "ab", "ab", "ab\ufffd"]


def test_invalid_bytes_become_replacement_characters(tokenizer: Tokenizer) -> None:
    assert _shown(tokenizer, [0xFF, 0x61, 0xC3, 0x62], TextRules())[-1] == "\ufffda\ufffdb"


def test_a_stop_string_is_held_back_until_it_is_decided(tokenizer: Tokenizer) -> None:
    seen = _shown(tokenizer, list(b"ab##c###d"), TextRules(stops=("###",)))

    assert seen == ["a", "ab", "ab", "ab", "ab##c", "ab##c", "ab##c", "ab##c", "ab##c"]


def test_what_was_held_back_is_shown_at_the_end(tokenizer: Tokenizer) -> None:
    assert _shown(tokenizer, list(b"ab##"), TextRules(stops=("###",)))[-2:] == ["ab", "ab##"]


def test_the_earliest_of_several_stop_strings_wins(tokenizer: Tokenizer) -> None:
    detokenizer = Detokenizer(tokenizer, TextRules(stops=("cd", "bcd", "x")))
    for token_id in b"abcd":
        detokenizer.append(token_id)

    assert (detokenizer.stopped_by, detokenizer.text) == ("bcd", "a")


def test_a_stop_string_can_be_kept_in_the_text(tokenizer: Tokenizer) -> None:
    assert _shown(tokenizer, list(b"ab.c"), TextRules(stops=(".",), include_stop=True)) == [
        "a",
        "ab",
        "ab.",
        "ab.",
    ]


def test_a_stop_string_counts_only_after_min_tokens(tokenizer: Tokenizer) -> None:
    rules = TextRules(stops=(".",), min_tokens=3)

    assert _shown(tokenizer, list(b"..a.b"), rules)[-1] == "..a"


def test_a_terminal_token_is_no_part_of_the_text(tokenizer: Tokenizer) -> None:
    rules = TextRules(terminal_token_ids=frozenset({ord("!"), EOS_TOKEN_ID}))

    assert _shown(tokenizer, list(b"hi!"), rules)[-1] == "hi"
    assert _shown(tokenizer, [*b"hi", EOS_TOKEN_ID], rules)[-1] == "hi"


def test_special_tokens_are_shown_only_if_asked_for(tokenizer: Tokenizer) -> None:
    ids = [*b"a", 256, *b"b"]

    assert _shown(tokenizer, ids, TextRules())[-1] == "ab"
    assert _shown(tokenizer, ids, TextRules(skip_special_tokens=False))[-1] == "a<bos>b"


@given(
    token_ids=st.lists(st.sampled_from([*b"ab#.", 0xE6, 0xBC, 0xA2, 0xFF]), max_size=30),
    stops=st.lists(st.text("ab#.漢", min_size=1, max_size=4), max_size=4),
)
def test_what_was_shown_is_never_taken_back(
    tokenizer: Tokenizer, token_ids: list[int], stops: list[str]
) -> None:
    seen = _shown(tokenizer, token_ids, TextRules(stops=tuple(stops)))

    for before, after in pairwise(seen):
        assert after.startswith(before)
    assert all(stop not in seen[-1] for stop in stops)
    whole = bytes(token_ids).decode(errors="replace")
    cut = min((whole.find(stop) for stop in stops if stop in whole), default=None)
    assert cut is None or "\ufffd" in whole or seen[-1] == whole[:cut]
    assert cut is not None or seen[-1] == whole


def test_tokens_show_their_bytes(tokenizer: Tokenizer) -> None:
    assert tokenizer.token_text(ord("a")) == "a"
    assert tokenizer.token_text(0xE6) == "bytes:\\xe6"
    assert tokenizer.token_bytes(EOS_TOKEN_ID) == b"<eos>"
