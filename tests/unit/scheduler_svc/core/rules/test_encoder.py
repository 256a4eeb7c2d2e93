"""Multimodal items: no token of an item without its embeddings, and no embedding computed twice."""

from __future__ import annotations

from scheduler_svc.core.request import MultiModalItem, Request
from scheduler_svc.core.rules.encoder_cache import EncoderCache
from tests.factories import LaneDriver, make_config, make_submission

CAT, DOG = MultiModalItem(2, 4, "cat"), MultiModalItem(8, 4, "dog")


def with_items(request_id: str, *items: MultiModalItem) -> Request:
    return Request(make_submission(request_id, [9] * 14), block_size=4, mm_items=items)


def make_lane(**fields: object) -> LaneDriver:
    defaults: dict[str, object] = {"encoder_compute_budget": 8, "encoder_cache_size": 8}
    return LaneDriver(make_config(**(defaults | fields)))


def encoder_inputs(lane: LaneDriver) -> dict[str, list[int]]:
    assert lane.scheduler.last_draft is not None
    return lane.scheduler.last_draft.encoder_inputs


def test_a_chunk_ends_before_an_item_that_has_no_budget() -> None:
    lane = make_lane(encoder_compute_budget=4)
    lane.add(with_items("a", CAT, DOG))
    assert lane.step().num_scheduled_tokens == {"a": 8}
    assert encoder_inputs(lane) == {"a": [0]}
    assert lane.step().num_scheduled_tokens == {"a": 6}
    assert encoder_inputs(lane) == {"a": [1]}


def test_an_item_that_is_cached_is_not_computed_again() -> None:
    lane = make_lane(enable_prefix_caching=False)
    lane.add(with_items("a", CAT))
    lane.step()
    lane.add(with_items("b", CAT))
    lane.step()
    assert encoder_inputs(lane) == {}


def test_an_item_is_not_split_where_that_is_disabled() -> None:
    lane = make_lane(max_num_batched_tokens=10, disable_chunked_mm_input=True)
    lane.add(with_items("a", CAT, DOG))
    assert lane.step().num_scheduled_tokens == {"a": 8}


def test_what_a_request_holds_is_not_evicted() -> None:
    cache = EncoderCache(8)
    a, b = with_items("a", CAT), with_items("b", DOG, CAT)
    cache.add(a, 0)
    cache.add(b, 0)
    assert not cache.make_room(4)
    cache.release(b, 0)
    assert cache.make_room(4)
    assert cache.take_evicted() == ["dog"]
    assert cache.hold_if_cached(b, 1)
    cache.release(a, 0)
    assert not cache.make_room(8)


def test_an_item_that_stands_twice_is_held_until_its_last_place() -> None:
    cache = EncoderCache(4)
    request = with_items("a", CAT, MultiModalItem(8, 4, "cat"))
    cache.add(request, 0)
    cache.hold_again(request, 1)
    cache.release(request, 0)
    assert not cache.make_room(4)
    cache.release(request, 1)
    assert cache.make_room(4)


def test_an_item_computed_again_in_the_same_step_is_not_told_as_evicted() -> None:
    cache = EncoderCache(4)
    request = with_items("a", CAT)
    cache.add(request, 0)
    cache.release(request, 0)
    assert cache.make_room(4)
    cache.add(request, 0)
    assert cache.take_evicted() == []


def test_a_new_generation_has_no_embeddings() -> None:
    lane = make_lane()
    lane.add(with_items("a", CAT))
    lane.plan()
    lane.scheduler.cancel_step(lane.planned.pop())
    lane.scheduler.end_generation()
    lane.step()
    assert encoder_inputs(lane) == {"a": [0]}
