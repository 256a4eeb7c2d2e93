"""Has the system give the KV cache its memory before a step needs it.

Memory that was never touched costs a page fault and its clearing at the first write, which is slow
in a virtual machine above all. A thread that runs when nothing else wants its core does that ahead,
in the order in which blocks are handed out for the first time.
Knows memory, no block's owner. Invariant: what the memory holds is never changed, so it may run
beside steps that write there.
"""

from __future__ import annotations

import ctypes
import errno
import logging
import mmap
import os
import sys
import threading
import time

import torch

from executor_svc.kv_cache import KVCache

log = logging.getLogger("segue.executor")

MADV_POPULATE_WRITE = 23  # Linux 5.14
SLICE_BYTES = 2 << 20  # of a plane at a time: a huge page
LOWEST_PRIORITY = 19


def populate_in_background(kv_cache: KVCache) -> threading.Thread | None:
    """None where the system has no such call; then memory comes at its first use, as ever."""
    if sys.platform != "linux":
        return None
    thread = threading.Thread(
        target=_populate_last_of_all, args=(kv_cache,), name="populate", daemon=True
    )
    thread.start()
    return thread


def _populate_last_of_all(kv_cache: KVCache) -> None:
    os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), LOWEST_PRIORITY)
    started_s = time.monotonic()
    try:
        num_bytes = populate(kv_cache)
    except OSError as error:
        if error.errno != errno.EINVAL:  # an older Linux does not know the call
            log.warning("the KV cache's memory will come as it is used: %s", error.strerror)
        return
    seconds = time.monotonic() - started_s
    log.info("the KV cache has its memory: %d MiB in %.1f s", num_bytes >> 20, seconds)


def populate(kv_cache: KVCache) -> int:
    """All of it, in bytes; first the first blocks of all layers. Raises OSError."""
    planes = [
        plane
        for layer in range(kv_cache.spec.num_layers)
        for plane in (kv_cache.key(layer), kv_cache.value(layer))
    ]
    madvise = ctypes.CDLL(None, use_errno=True).madvise
    madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    for offset in range(0, planes[0].nbytes, SLICE_BYTES):
        for plane in planes:
            start, end = _pages(plane, offset)
            if madvise(start, end - start, MADV_POPULATE_WRITE):
                code = ctypes.get_errno()
                raise OSError(code, os.strerror(code))
    return sum(plane.nbytes for plane in planes)


def _pages(plane: torch.Tensor, offset: int) -> tuple[int, int]:
    """The whole pages that a slice of it lies in."""
    first = plane.data_ptr() + offset
    end = plane.data_ptr() + min(offset + SLICE_BYTES, plane.nbytes)
    return first // mmap.PAGESIZE * mmap.PAGESIZE, -(-end // mmap.PAGESIZE) * mmap.PAGESIZE
