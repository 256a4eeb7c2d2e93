"""Times kernels for `gpu_check.py`, each against its own limit and attention against torch's.

Knows the kernels' wrappers and shapes; starts no process. Invariant: a time is the best of several
rounds on the device, with the cache of the card overwritten by what lies between.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from kernels import AttentionShape
from kernels.triton import ops
from scripts.gpu_check_kernels import (
    DEVICE,
    HAS_GPU,
    PagedBatch,
    draw_columns,
    noise,
    penalty_columns,
)

ROUNDS = 20


def seconds(run: Callable[[], Any], is_smoke: bool) -> float:
    """Of one call, the best of several rounds."""
    run()  # compiles
    if not HAS_GPU:
        started = time.perf_counter()
        run()
        return time.perf_counter() - started
    flush = torch.empty(64 << 20, dtype=torch.int32, device=DEVICE)
    best = float("inf")
    for _ in range(3 if is_smoke else ROUNDS):
        flush.zero_()  # more than any card's L2
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        run()
        end.record()
        end.synchronize()
        best = min(best, start.elapsed_time(end) / 1000)
    return best


def measure_limits(is_smoke: bool) -> dict[str, float]:
    """What this machine was seen to do: bytes read and written, FLOPs of a large product."""
    source = torch.ones((1 << 20) if is_smoke else (1 << 30), dtype=torch.uint8, device=DEVICE)
    target = torch.empty_like(source)
    copy_s = seconds(lambda: target.copy_(source), is_smoke)
    size = 128 if is_smoke else 8192
    a, b = noise(size, size, dtype=torch.bfloat16), noise(size, size, dtype=torch.bfloat16)
    product_s = seconds(lambda: a @ b, is_smoke)
    return {
        "copy_bytes_per_s": 2 * source.nbytes / copy_s,
        "matmul_flops_per_s": 2.0 * size**3 / product_s,
    }


def time_kernels(limits: dict[str, float], is_smoke: bool) -> list[dict[str, Any]]:
    dtype = torch.float32 if is_smoke else torch.bfloat16
    shape = AttentionShape(*((4, 2, 64, 16) if is_smoke else (32, 8, 128, 16)), dtype)
    rows: list[dict[str, Any]] = []
    loads = [(2, 40)] if is_smoke else [(1, 32_768), (32, 4096), (256, 1024)]
    for num_rows, context in loads:
        batch = PagedBatch(shape, [(1, context)] * num_rows)
        num_bytes = 2 * batch.context * shape.num_kv_heads * shape.head_dim * dtype.itemsize
        taken = seconds(batch.attend, is_smoke)
        name = f"decode {num_rows} x {context}"
        row = _row(name, taken, num_bytes / limits["copy_bytes_per_s"])
        rows.append(row | _time_torch(shape, (num_rows, 1, context), is_smoke))
    for num_rows, length in [(1, 20)] if is_smoke else [(1, 8192), (8, 2048)]:
        batch = PagedBatch(shape, [(length, length)] * num_rows)
        flops = 2.0 * num_rows * shape.num_heads * shape.head_dim * length * length
        taken = seconds(batch.attend, is_smoke)
        row = _row(f"prefill {num_rows} x {length}", taken, flops / limits["matmul_flops_per_s"])
        rows.append(row | _time_torch(shape, (num_rows, length, length), is_smoke))
    return [*rows, _time_product(limits, is_smoke), *_time_memory_bound(limits, is_smoke)]


def _time_product(limits: dict[str, float], is_smoke: bool) -> dict[str, Any]:
    size = 128 if is_smoke else 4096
    x, matrix = noise(size, size, dtype=torch.bfloat16), noise(size, size, dtype=torch.bfloat16)
    if is_smoke:
        x, matrix = x.float(), matrix.float()  # the interpreter's bfloat16 is not to be trusted
    taken = seconds(lambda: ops.invariant_linear(x, matrix), is_smoke)
    return _row("invariant_linear", taken, 2.0 * size**3 / limits["matmul_flops_per_s"])


def _time_memory_bound(limits: dict[str, float], is_smoke: bool) -> list[dict[str, Any]]:
    num_tokens, size, vocab = (4, 256, 1100) if is_smoke else (4096, 4096, 128_256)
    dtype = torch.float32 if is_smoke else torch.bfloat16
    x, weight = noise(num_tokens, size, dtype=dtype), noise(size, dtype=dtype)
    residual = x.float()
    logits = noise(2 if is_smoke else 256, vocab, dtype=torch.float32)
    columns = draw_columns(len(logits))
    indices = torch.arange(len(logits), device=DEVICE)
    heads, blocks = x.view(num_tokens, -1, 64), x.view(1, -1, 4, size)
    angles = torch.ones(num_tokens, 1, 64, dtype=dtype, device=DEVICE)
    caches = torch.empty_like(heads), torch.empty_like(heads)
    slots = torch.randperm(num_tokens, device=DEVICE)
    ids = torch.randperm(blocks.shape[1], device=DEVICE).int()
    moved = torch.empty_like(blocks)
    penalties = penalty_columns(len(logits), 20 if is_smoke else 2000)
    runs: list[tuple[str, Callable[[], Any], int]] = [
        ("rms_norm", lambda: ops.rms_norm(x, weight, 1e-5), 2 * x.nbytes),
        (
            "add_rms_norm",
            lambda: ops.add_rms_norm(x, residual, weight, 1e-5),
            2 * (x.nbytes + residual.nbytes),
        ),
        ("silu_and_mul", lambda: ops.silu_and_mul(x), x.nbytes * 3 // 2),
        (
            "rotary_embedding",
            lambda: ops.rotary_embedding(heads, angles, angles),
            2 * (x.nbytes + angles.nbytes),
        ),
        (
            "reshape_and_cache",
            lambda: ops.reshape_and_cache(heads, heads, *caches, slots),
            4 * x.nbytes,
        ),
        ("copy_blocks", lambda: ops.copy_blocks(blocks, moved, ids, ids), 2 * x.nbytes),
        ("sample_tokens", lambda: ops.sample_tokens(logits, columns, indices), logits.nbytes),
        # Last, since it changes them. Counts are zeroed and read, one number for each logit.
        ("apply_penalties", lambda: ops.apply_penalties(logits, penalties), 3 * logits.nbytes),
    ]
    return [
        _row(name, seconds(run, is_smoke), num_bytes / limits["copy_bytes_per_s"])
        for name, run, num_bytes in runs
    ]


def _time_torch(
    shape: AttentionShape, sizes: tuple[int, int, int], is_smoke: bool
) -> dict[str, Any]:
    """torch's own attentions, over keys that lie side by side; they have no paged cache.

    sizes: rows, queries of each, keys of each. Where one can not run here, its column says why.
    """
    num_rows, num_queries, context = sizes
    kv_size = (num_rows, shape.num_kv_heads, context, shape.head_dim)
    query = noise(num_rows, shape.num_heads, num_queries, shape.head_dim, dtype=shape.dtype)
    keys, values = noise(*kv_size, dtype=shape.dtype), noise(*kv_size, dtype=shape.dtype)
    is_causal = num_queries > 1

    def with_flex() -> Callable[[], Any]:
        mask = None
        if is_causal:
            mask = create_block_mask(_sees, None, None, num_queries, context, device=str(DEVICE))
        attend: Any = torch.compile(flex_attention) if HAS_GPU else flex_attention
        return lambda: attend(query, keys, values, block_mask=mask, enable_gqa=True)

    def with_sdpa() -> Callable[[], Any]:
        return lambda: F.scaled_dot_product_attention(
            query, keys, values, is_causal=is_causal, enable_gqa=True
        )

    found: dict[str, Any] = {}
    for name, prepare in (("torch SDPA us", with_sdpa), ("torch flex us", with_flex)):
        try:
            found[name] = round(seconds(prepare(), is_smoke) * 1e6, 1)
        except Exception as error:  # noqa: BLE001 (theirs to fail; ours is timed all the same)
            found[name] = f"{type(error).__name__}: {error}".splitlines()[0][:60]
    return found


def _sees(
    row: torch.Tensor, head: torch.Tensor, query: torch.Tensor, key: torch.Tensor
) -> torch.Tensor:
    return query >= key


def _row(name: str, taken: float, limit: float) -> dict[str, Any]:
    return {
        "kernel": name,
        "us": round(taken * 1e6, 1),
        "limit us": round(limit * 1e6, 1),
        "% of limit": round(100 * limit / taken, 1),
        "torch SDPA us": "",
        "torch flex us": "",
    }
