"""Our own CPU kernels, compiled where there is a compiler; elsewhere torch's take their place.

Knows ctypes and torch's memory; what an op means is reference.py's. Invariant: a row's result has
the same bits in every batch, by the way each sum is written out (`vectors.h`, `linear.h`).
"""

from __future__ import annotations

import ctypes
import logging
import os
from functools import lru_cache
from pathlib import Path

import torch

from kernels.native.attention_plan import NativeAttentionPlan
from kernels.native.build import BuildError, build_library
from kernels.native.decoder import DecoderLayer, DecoderStep, NativeDecoder
from kernels.native.library import NativeKernels
from kernels.native.product import NativeProduct

__all__ = [
    "DecoderLayer",
    "DecoderStep",
    "NativeAttentionPlan",
    "NativeDecoder",
    "NativeKernels",
    "NativeProduct",
    "native_kernels",
]

log = logging.getLogger("segue.kernels")


@lru_cache(maxsize=1)
def native_kernels() -> NativeKernels | None:
    """None, with a line in the log, where they can not be had or SEGUE_NATIVE_KERNELS=0."""
    if os.environ.get("SEGUE_NATIVE_KERNELS", "1") == "0":
        return None
    try:
        library = _load(build_library())
    except (BuildError, OSError) as error:
        log.warning("no native kernels, torch's are used instead, which are slower: %s", error)
        return None
    kernels = NativeKernels(library)
    kernels.set_num_threads(torch.get_num_threads())
    return kernels


def _load(path: Path) -> ctypes.CDLL:
    return ctypes.CDLL(str(path))
