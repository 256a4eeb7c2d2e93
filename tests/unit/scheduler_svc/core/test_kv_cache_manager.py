"""Slots and hits: an attempt that fails leaves no trace, and a hit is never the whole request."""

from __future__ import annotations

import pytest

from scheduler_svc.core.journal import Journal
from scheduler_svc.core.kv_cache_manager import AdmissionNeed, KVCacheManager
from scheduler_svc.core.request import Request
from tests.factories import make_config, make_request


def make_manager(num_usable: int = 8, **fields: object) -> KVCacheManager:
    return KVCacheManager(make_config(num_gpu_blocks=num_usable + 1, **fields), Journal())


def admit(kv: KVCacheManager, request: Request, num_tokens: int) -> bool:
    need = AdmissionNeed(kv.get_computed_blocks(request))
    return kv.allocate_admission(request, num_tokens, need)


@pytest.mark.parametrize(("num_tokens", "num_hits"), [(8, 1), (9, 2), (12, 2), (13, 3)])
def test_a_cached_prompt_recomputes_at_least_its_last_token(num_tokens: int, num_hits: int) -> None:
    """So a block-aligned prompt recomputes its whole last block (specification 7.1)."""
    kv = make_manager()
    first = make_request("a", list(range(num_tokens)))
    assert admit(kv, first, num_tokens)
    again = make_request("b", list(range(num_tokens)))
    assert len(kv.get_computed_blocks(again)) == num_hits


def test_blocks_are_hittable_when_they_are_scheduled() -> None:
    kv = make_manager()
    request = make_request("a", list(range(12)))
    assert admit(kv, request, 6)
    other = make_request("b", list(range(12)))
    assert [b.block_id for b in kv.get_computed_blocks(other)] == [request.block_ids[0]]


def test_an_admission_that_fails_leaves_no_trace() -> None:
    kv = make_manager(num_usable=3)
    assert admit(kv, make_request("a", list(range(8))), 8)
    before = kv.pool.rows(range(1, 4))
    request = make_request("b", [*range(8), 50, 51, 52, 53, 54])
    assert not admit(kv, request, 9)
    assert kv.pool.rows(range(1, 4)) == before
    assert request.block_ids == []


def test_a_hit_on_a_free_block_counts_as_needed() -> None:
    """Else an admission would promise blocks that its own hits take from the free list."""
    kv = make_manager(num_usable=3)
    first = make_request("a", list(range(8)))
    assert admit(kv, first, 8)
    kv.free(first)
    request = make_request("b", [*range(8), 50, 51, 52, 53, 54])
    need = AdmissionNeed(kv.get_computed_blocks(request))
    assert need.num_blocks_beyond(4, request) == 4
    assert not kv.allocate_admission(request, 5, need)


def test_a_freed_request_finds_its_blocks_again() -> None:
    kv = make_manager()
    request = make_request("a", list(range(10)))
    assert admit(kv, request, 10)
    table = list(request.block_ids)
    kv.free(request)
    assert [block.block_id for block in kv.get_computed_blocks(request)] == table[:2]


def test_tables_never_reach_beyond_the_model_length() -> None:
    kv = make_manager(num_usable=8, max_model_len=10)
    request = make_request("a", list(range(8)))
    assert admit(kv, request, 8)
    request.num_computed_tokens = 8
    blocks = kv.allocate_slots(request, 1, num_lookahead_tokens=30)
    assert blocks is not None
    assert len(request.block_ids) == 3


def test_without_caching_nothing_is_registered() -> None:
    kv = make_manager(enable_prefix_caching=False)
    request = make_request("a", list(range(8)))
    assert admit(kv, request, 8)
    assert kv.pool.num_cached_hashes == 0
    kv.free(request)
    assert [b.block_id for b in kv.pool.free_queue.in_order()][:2] == [2, 1]


def test_unregistering_from_an_index_keeps_what_was_there_before() -> None:
    kv = make_manager()
    request = make_request("a", list(range(12)))
    assert admit(kv, request, 12)
    kv.unregister_from(request, 1)
    assert request.num_registered_blocks == 1
    assert kv.pool.num_cached_hashes == 1
