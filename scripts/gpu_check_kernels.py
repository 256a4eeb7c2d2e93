"""Checks kernels for `gpu_check.py`, each against the reference.

Knows the kernels' wrappers and shapes; starts no process. Invariant: every op of
`kernels.triton.ops` has a case.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from kernels import AttentionMetadata, AttentionShape, reference
from kernels.triton import ops
from kernels.triton.attention_plan import plan_triton_attention
from kernels.triton.penalties import PenaltyColumns
from kernels.triton.sample_tokens import DrawColumns

HAS_GPU = torch.cuda.is_available()
DEVICE = torch.device("cuda" if HAS_GPU else "cpu")
TOLERANCES = {torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 4e-2}
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
    cases = [*_attention_cases(is_smoke), *_other_cases(is_smoke), *_cache_cases(is_smoke)]
    for name, got, expected in [*cases, _penalties_case(is_smoke), _drafts_case()]:
        error = ""
        try:
            actual, wanted = got().cpu(), expected().cpu()
            tolerance = TOLERANCES.get(wanted.dtype, 0.0)  # token ids have to be the same
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


def _cache_cases(is_smoke: bool) -> list[Case]:
    """Rotation, and what writes into a cache: each changes its own copy of it."""
    num_tokens, heads, dim = (3, 2, 64) if is_smoke else (300, 8, 128)
    cases: list[Case] = []
    for dtype in [torch.float32] if is_smoke else [torch.float32, torch.bfloat16, torch.float16]:
        x = noise(num_tokens, heads, dim, dtype=dtype)
        angles = noise(num_tokens, dim // 2, dtype=torch.float32)
        cos, sin = angles.cos().to(dtype), angles.sin().to(dtype)
        rotation = (torch.cat(pair, dim=1).unsqueeze(1) for pair in ((cos, cos), (-sin, sin)))
        wide_cos, wide_sin = rotation
        blocks = noise(2, num_tokens, 16, heads, dim, dtype=dtype)
        slots = torch.randperm(num_tokens * 16, device=DEVICE)[:num_tokens]
        slots[0] = -1  # fills a batch up
        sources = torch.arange(0, num_tokens - 1, 2, dtype=torch.int32, device=DEVICE)

        def cached(write: Any, x: Any = x, blocks: Any = blocks, slots: Any = slots) -> Any:
            keys, values = blocks.clone()
            write(x, x.flip(0), keys, values, slots)
            return torch.stack([keys, values])

        def copied(copy: Any, blocks: Any = blocks, sources: Any = sources) -> Any:
            changed = blocks.clone()
            copy(changed, changed, sources, sources + 1)
            return changed

        cases += [
            (
                f"rotary_embedding {dtype}",
                lambda x=x, c=wide_cos, s=wide_sin: ops.rotary_embedding(x, c, s),
                lambda x=x, c=cos, s=sin: reference.rotary_embedding(x, c, s),
            ),
            (
                f"reshape_and_cache {dtype}",
                lambda cached=cached: cached(ops.reshape_and_cache),
                lambda cached=cached: cached(reference.reshape_and_cache),
            ),
            (
                f"copy_blocks {dtype}",
                lambda copied=copied: copied(ops.copy_blocks),
                lambda copied=copied: copied(reference.copy_blocks),
            ),
        ]
    return cases


def penalty_columns(num_rows: int, num_tokens: int) -> PenaltyColumns:
    """The first half of each row's tokens is its prompt."""
    ids = torch.randint(0, 1000, (num_rows, num_tokens), dtype=torch.int32, device=DEVICE)
    lengths = torch.full((num_rows,), num_tokens, dtype=torch.int32, device=DEVICE)
    values = [torch.full((num_rows,), value, device=DEVICE) for value in (0.5, 0.25, 1.3)]
    rows = torch.arange(num_rows, device=DEVICE)
    return PenaltyColumns(rows, ids, lengths // 2, lengths, *values)


def _penalties_case(is_smoke: bool) -> Case:
    logits = noise(3, 1100 if is_smoke else 128_256, dtype=torch.float32)
    columns = penalty_columns(3, 20 if is_smoke else 2000)

    def got() -> torch.Tensor:
        changed = logits.clone()
        ops.apply_penalties(changed, columns)
        return changed

    def expected() -> torch.Tensor:
        half = columns.token_ids.shape[1] // 2
        tokens = columns.token_ids.tolist()
        return torch.stack(
            [
                reference.apply_penalties(row, ids[:half], ids[half:], (0.5, 0.25, 1.3))
                for row, ids in zip(logits.cpu(), tokens, strict=True)
            ]
        )

    return ("apply_penalties", got, expected)


def _drafts_case() -> Case:
    sampled, drafts = torch.tensor([[5, 1, 2, 3, 9, 9, 4, 5], [0, 1, 2, 0, 8, 9, 4, 0]])
    starts = torch.tensor([0, 1, 4, 8], dtype=torch.int32)
    given = (sampled, drafts, starts)
    return (
        "verify_drafts",
        lambda: ops.verify_drafts(*(part.to(DEVICE) for part in given), max_positions=4),
        lambda: reference.verify_drafts(*given),
    )


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
