"""The KV cache's memory is there before it is used, and holds what it held."""

from __future__ import annotations

import ctypes
import mmap
import sys

import pytest
import torch

from executor_svc import cache_population
from executor_svc.cache_population import populate, populate_in_background
from executor_svc.kv_cache import KVCache, KVCacheSpec

SPEC = KVCacheSpec(num_layers=3, num_kv_heads=2, head_dim=16, dtype=torch.bfloat16)
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="Linux' own call")


def resident_pages(tensor: torch.Tensor) -> tuple[int, int]:
    """How many pages of it have memory, and how many there are."""
    start = tensor.data_ptr() // mmap.PAGESIZE * mmap.PAGESIZE
    num_pages = -(-(tensor.data_ptr() + tensor.nbytes - start) // mmap.PAGESIZE)
    found = (ctypes.c_ubyte * num_pages)()
    mincore = ctypes.CDLL(None, use_errno=True).mincore
    mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p]
    assert mincore(start, num_pages * mmap.PAGESIZE, found) == 0
    return sum(flag & 1 for flag in found), num_pages


def give_back(tensor: torch.Tensor) -> None:
    """The system takes its pages: what the allocator had from an earlier test may be there yet."""
    start = -(-tensor.data_ptr() // mmap.PAGESIZE) * mmap.PAGESIZE
    end = (tensor.data_ptr() + tensor.nbytes) // mmap.PAGESIZE * mmap.PAGESIZE
    madvise = ctypes.CDLL(None, use_errno=True).madvise
    madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    assert madvise(start, end - start, mmap.MADV_DONTNEED) == 0


def test_all_pages_are_there_and_hold_what_they_held() -> None:
    cache = KVCache(SPEC, num_blocks=5000, block_size=16)
    for layer in range(SPEC.num_layers):
        give_back(cache.key(layer))
        give_back(cache.value(layer))
    cache.value(2)[4999, 15] = 7.0
    assert resident_pages(cache.key(1))[0] < resident_pages(cache.key(1))[1]
    thread = populate_in_background(cache)
    assert thread is not None
    thread.join()
    for layer in range(SPEC.num_layers):
        for plane in (cache.key(layer), cache.value(layer)):
            have, of = resident_pages(plane)
            assert have == of
    assert float(cache.value(2).sum()) == 7.0 * 2 * 16


def test_the_whole_cache_is_counted() -> None:
    cache = KVCache(SPEC, num_blocks=3, block_size=16)
    assert populate(cache) == 3 * SPEC.bytes_per_block(16)


def test_a_system_without_the_call_is_no_fault(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(cache_population, "MADV_POPULATE_WRITE", 9999)
    thread = populate_in_background(KVCache(SPEC, num_blocks=3, block_size=16))
    assert thread is not None
    thread.join()
    assert caplog.records == []
