"""Checks and times kernels for `gpu_check.py`, each against the reference and its own limit.

Knows the kernels' wrappers and shapes; starts no process. Invariant: a time is the best of several
rounds on the device, with the cache of the card overwritten by what lies between.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from kernels import AttentionMetadata, AttentionShape, reference
from kernels.triton import ops
from kernels.triton.attention_plan import plan_triton_attention
from kernels.triton.sample_tokens import DrawColumns

HAS_GPU = torch.cuda.is_available()
DEVICE = torch.device("cuda" if HAS_GPU else "cpu")
ROUNDS = 20
Case = tuple[str, Callable[[], Any], Callable[[], Any]]


def noise(*size: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.randn(size, device=DEVICE, dtype=torch.float32).to(dtype)


class PagedBatch:
    """Rows of (queries, context) in blocks of their own, shuffled."""

    def __init__(self, shape: AttentionShape, rows: list[tuple[int, int]]) -> None:
        self.shape = shape
        counts = [-(-context // shape.block_size) for _, context in rows]
        size = (sum(counts) + 1, shape.block_size, shape.num_kv_heads, shape.head_dim)
        self.keys, self.values = noise(*size, dtype=shape.dtype), noise(*size, dtype=shape.dtype)
        ids = torch.randperm(sum(counts)).int() + 1
        tables = torch.zeros(len(rows), max(counts), dtype=torch.int32)
        for row, part in enumerate(ids.split(counts)):
            tables[row, : len(part)] = part
        queries = torch.tensor([0, *(num_queries for num_queries, _ in rows)])
        self.num_tokens = int(queries.sum())
        self.context = sum(context for _, context in rows)
        self.query = noise(self.num_tokens, shape.num_heads, shape.head_dim, dtype=shape.dtype)
        self.on_cpu = AttentionMetadata(
            queries.cumsum(0).int(),
            torch.tensor([context for _, context in rows], dtype=torch.int32),
            tables,
            torch.zeros(self.num_tokens, dtype=torch.int64),
            max(num_queries for num_queries, _ in rows),
            max(context for _, context in rows),
        )
        one = self.on_cpu
        self.metadata = AttentionMetadata(
            one.cu_seqlens_q.to(DEVICE),
            one.seq_lens.to(DEVICE),
            one.block_tables.to(DEVICE),
            one.slot_mapping.to(DEVICE),
            one.max_seqlen_q,
            one.max_seqlen_k,
        )

    def attend(self) -> torch.Tensor:
        plan = plan_triton_attention(self.metadata, self.shape)
        attend = ops.paged_attention if plan.num_splits == 1 else ops.split_kv_attention
        return attend(self.query, self.keys, self.values, plan)

    def expected(self) -> torch.Tensor:
        tensors = (self.query.cpu(), self.keys.cpu(), self.values.cpu())
        shape = self.shape
        return reference.paged_attention(*tensors, self.on_cpu, shape.window, shape.soft_cap)


def check_kernels(is_smoke: bool) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for name, got, expected in [*_attention_cases(is_smoke), *_other_cases(is_smoke)]:
        error = ""
        try:
            actual, wanted = got().cpu(), expected().cpu()
            tolerance = {torch.float32: 1e-4, torch.float16: 1e-2}.get(wanted.dtype, 4e-2)
            torch.testing.assert_close(actual, wanted, rtol=tolerance, atol=tolerance)
        except Exception as found:  # noqa: BLE001 (a kernel that raises is a kernel that is wrong)
            error = f"{type(found).__name__}: {found}"
        rows.append({"kernel": name, "ok": not error, "error": error})
    return rows


def _attention_cases(is_smoke: bool) -> list[Case]:
    ragged = [(1, 20), (5, 18)] if is_smoke else [(1, 777), (130, 130), (60, 3000), (1, 16)]
    decodes = [(1, 600), (1, 9)] if is_smoke else [(1, 9000), (1, 33), (1, 4096)]
    dtypes = [torch.float32] if is_smoke else [torch.bfloat16, torch.float16, torch.float32]
    heads = [(4, 2, 64, 16)] if is_smoke else [(32, 8, 128, 16), (9, 3, 64, 16), (16, 8, 256, 32)]
    cases: list[Case] = []
    for dtype in dtypes:
        for head in heads:
            for rows in (ragged, decodes):
                for window, soft_cap in ((0, 0.0), (11, 30.0)):
                    shape = AttentionShape(*head, dtype, window=window, soft_cap=soft_cap)
                    batch = PagedBatch(shape, rows)
                    kind = "decode" if rows is decodes else "mixed"
                    name = f"attention {kind} {head} {dtype} window {window} cap {soft_cap}"
                    cases.append((name, batch.attend, batch.expected))
    return cases


def _other_cases(is_smoke: bool) -> list[Case]:
    num_tokens, size = (3, 200) if is_smoke else (300, 4096)
    cases: list[Case] = []
    for dtype in [torch.float32] if is_smoke else [torch.float32, torch.bfloat16, torch.float16]:
        x, weight = noise(num_tokens, size, dtype=dtype), noise(size, dtype=dtype)
        y = x.flip(0).float()  # the residual is float32 in a model of any dtype
        matrix = noise(size // 2, size, dtype=dtype) / size**0.5
        cases += [
            (
                f"rms_norm {dtype}",
                lambda x=x, weight=weight: ops.rms_norm(x, weight, 1e-5),
                lambda x=x, weight=weight: reference.rms_norm(x, weight, 1e-5),
            ),
            (
                f"add_rms_norm {dtype}",
                lambda x=x, y=y, weight=weight: ops.add_rms_norm(x, y, weight, 1e-5)[0],
                lambda x=x, y=y, weight=weight: reference.add_rms_norm(x, y, weight, 1e-5)[0],
            ),
            (
                f"silu_and_mul {dtype}",
                lambda x=x: ops.silu_and_mul(x),
                lambda x=x: reference.silu_and_mul(x),
            ),
            (
                f"invariant_linear {dtype}",
                lambda x=x, matrix=matrix: ops.invariant_linear(x, matrix),
                lambda x=x, matrix=matrix: F.linear(x.double(), matrix.double()).to(x.dtype),
            ),
        ]
    return [*cases, _sampling_case(is_smoke)]


def _sampling_case(is_smoke: bool) -> Case:
    num_rows, vocab_size = (4, 1100) if is_smoke else (64, 128_256)
    logits = 3 * noise(num_rows, vocab_size, dtype=torch.float32)
    columns = draw_columns(num_rows)
    indices = torch.arange(num_rows, device=DEVICE)

    def expected() -> torch.Tensor:
        uniforms = reference.philox_uniform(
            columns.seeds.cpu(), columns.choices.cpu(), indices.cpu()
        )
        weights = [
            reference.filtered_weights(row, 0.8, 50, 0.9, 0.0) for row in logits.cpu().unbind()
        ]
        drawn = [reference.draw(w, float(u)) for w, u in zip(weights, uniforms, strict=True)]
        return torch.tensor(drawn)

    return ("sample_tokens", lambda: ops.sample_tokens(logits, columns, indices)[0], expected)


def draw_columns(num_rows: int) -> DrawColumns:
    def column(value: float, dtype: torch.dtype) -> torch.Tensor:
        return torch.full((num_rows,), value, dtype=dtype, device=DEVICE)

    seeds = torch.arange(num_rows, device=DEVICE) * 977
    return DrawColumns(
        column(0.8, torch.float32),
        column(50, torch.int64),
        column(0.9, torch.float64),
        column(0.0, torch.float32),
        seeds,
        torch.zeros_like(seeds),
    )


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
        sdpa = seconds(_torch_attention(shape, num_rows, 1, context), is_smoke)
        rows.append(_row(name, taken, num_bytes / limits["copy_bytes_per_s"], sdpa))
    for num_rows, length in [(1, 20)] if is_smoke else [(1, 8192), (8, 2048)]:
        batch = PagedBatch(shape, [(length, length)] * num_rows)
        flops = 2.0 * num_rows * shape.num_heads * shape.head_dim * length * length
        taken = seconds(batch.attend, is_smoke)
        sdpa = seconds(_torch_attention(shape, num_rows, length, length), is_smoke)
        limit = flops / limits["matmul_flops_per_s"]
        rows.append(_row(f"prefill {num_rows} x {length}", taken, limit, sdpa))
    return [*rows, *_time_memory_bound(limits, is_smoke)]


def _time_memory_bound(limits: dict[str, float], is_smoke: bool) -> list[dict[str, Any]]:
    num_tokens, size, vocab = (3, 256, 1100) if is_smoke else (4096, 4096, 128_256)
    dtype = torch.float32 if is_smoke else torch.bfloat16
    x, weight = noise(num_tokens, size, dtype=dtype), noise(size, dtype=dtype)
    residual = x.float()
    logits = noise(2 if is_smoke else 256, vocab, dtype=torch.float32)
    columns = draw_columns(len(logits))
    indices = torch.arange(len(logits), device=DEVICE)
    runs: list[tuple[str, Callable[[], Any], int]] = [
        (
            "add_rms_norm",
            lambda: ops.add_rms_norm(x, residual, weight, 1e-5),
            2 * (x.nbytes + residual.nbytes),
        ),
        ("silu_and_mul", lambda: ops.silu_and_mul(x), x.nbytes * 3 // 2),
        ("sample_tokens", lambda: ops.sample_tokens(logits, columns, indices), logits.nbytes),
    ]
    return [
        _row(name, seconds(run, is_smoke), num_bytes / limits["copy_bytes_per_s"], None)
        for name, run, num_bytes in runs
    ]


def _torch_attention(
    shape: AttentionShape, num_rows: int, num_queries: int, context: int
) -> Callable[[], Any]:
    """torch's own, over keys that lie side by side; it has no paged cache."""
    kv_size = (num_rows, shape.num_kv_heads, context, shape.head_dim)
    query = noise(num_rows, shape.num_heads, num_queries, shape.head_dim, dtype=shape.dtype)
    keys, values = noise(*kv_size, dtype=shape.dtype), noise(*kv_size, dtype=shape.dtype)
    is_causal = num_queries > 1
    return lambda: F.scaled_dot_product_attention(
        query, keys, values, is_causal=is_causal, enable_gqa=True
    )


def _row(name: str, taken: float, limit: float, torch_s: float | None) -> dict[str, Any]:
    return {
        "kernel": name,
        "us": round(taken * 1e6, 1),
        "limit us": round(limit * 1e6, 1),
        "% of limit": round(100 * limit / taken, 1),
        "torch SDPA us": "" if torch_s is None else round(torch_s * 1e6, 1),
    }
