"""A request's hash chain says what its blocks hold; a chain that lies is wrong text."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from scheduler_svc.core.request import MultiModalItem, Request, RequestStatus
from segue.types import Finish, FinishReason, Usage
from tests.factories import make_request, make_submission


@given(st.lists(st.integers(0, 5), min_size=1, max_size=20), st.lists(st.integers(0, 5)))
def test_chain_is_the_same_however_the_tokens_came(prompt: list[int], output: list[int]) -> None:
    grown = make_request(prompt=prompt)
    for token in output:
        grown.append_output(token)
        grown.update_block_hashes()
    at_once = make_request(prompt=[*prompt, *output])
    assert grown.block_hashes == at_once.block_hashes
    assert len(grown.block_hashes) == (len(prompt) + len(output)) // 4


def test_a_hash_covers_all_before_it() -> None:
    ours = make_request(prompt=[1, 2, 3, 4, 5, 6, 7, 8])
    other = make_request(prompt=[9, 2, 3, 4, 5, 6, 7, 8])
    assert ours.block_hashes[1] != other.block_hashes[1]


def test_adapters_and_salts_share_nothing() -> None:
    prompt = list(range(8))
    requests = [
        make_request(prompt=prompt),
        make_request(prompt=prompt, adapter="a"),
        make_request(prompt=prompt, cache_salt="a"),
        make_request(prompt=prompt, adapter="a", cache_salt="a"),
    ]
    for index in range(2):
        assert len({request.block_hashes[index] for request in requests}) == 4


def test_items_count_only_in_the_blocks_that_they_touch() -> None:
    submission = make_submission(prompt=[9] * 12)
    chains = [
        Request(submission, block_size=4, mm_items=(MultiModalItem(5, 3, item),)).block_hashes
        for item in ("cat", "dog")
    ]
    assert chains[0][0] == chains[1][0]
    assert chains[0][1] != chains[1][1]


def test_output_that_is_replaced_takes_its_hashes_with_it() -> None:
    """Adoption (H9): what the client saw wins."""
    request = make_request(prompt=[1, 2, 3, 4, 5])
    request.set_output([6, 7, 8, 9], [])
    request.set_output([6, 0], [])
    assert request.output_token_ids == [6, 0]
    assert request.block_hashes == make_request(prompt=[1, 2, 3, 4, 5, 6, 0]).block_hashes


def test_a_revived_request_drops_what_is_in_flight() -> None:
    request = make_request()
    request.num_in_flight_tokens = 1
    request.set_finished(Finish(FinishReason.STOP, Usage(3, 0)), 5)
    assert request.is_finished
    request.revive()
    assert request.status is RequestStatus.PREEMPTED
    assert request.finish is None
    assert request.num_stale_output_tokens == 1
    assert request.drop_stale_output
    assert request.drains_elsewhere


def test_extra_state_comes_back() -> None:
    request = Request(make_submission(), block_size=4, has_grammar=True)
    request.drains_elsewhere = True
    request.is_loading = True
    other = make_request()
    other.restore_extra_state(request.extra_state())
    assert other.extra_state() == request.extra_state()
    assert make_request().extra_state() == {}
