"""Our compiled attention, norms, rotation and activation beside reference.py; and how they come."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
import torch

import kernels
from kernels import AttentionMetadata, AttentionShape, reference
from kernels.native import NativeKernels, native_kernels
from kernels.native.attention_plan import NativeAttentionPlan
from kernels.native.build import BuildError, build_library

DTYPES = [torch.float32, torch.bfloat16]
TOLERANCE = {torch.float32: 2e-6, torch.bfloat16: 2e-2}
BLOCK_SIZE = 16
# Heads, key heads, head size.
HEADS = [
    (9, 3, 64),
    (4, 4, 16),
    (8, 2, 32),
    (8, 1, 128),
    (2, 1, 80),
    (2, 2, 256),
    (2, 1, 16),
    (4, 1, 16),
]
# Computed before this step, and tokens of this step, of each row.
ROWS = [(0, 37), (200, 1), (15, 1), (16, 20), (0, 1), (63, 2)]


def random(*size: int, seed: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(seed)).to(dtype)


def metadata_of(rows: list[tuple[int, int]]) -> AttentionMetadata:
    """Blocks are handed out backwards, so that no row's lie in order."""
    counts = torch.tensor([0, *(count for _, count in rows)])
    seq_lens = [before + count for before, count in rows]
    widths = [-(-length // BLOCK_SIZE) for length in seq_lens]
    tables = torch.zeros(len(rows), max(widths), dtype=torch.int32)
    free = sum(widths)
    for table, width in zip(tables, widths, strict=True):
        table[:width] = torch.arange(free, free - width, -1)
        free -= width
    return AttentionMetadata(
        cu_seqlens_q=counts.cumsum(0).int(),
        seq_lens=torch.tensor(seq_lens, dtype=torch.int32),
        block_tables=tables,
        slot_mapping=torch.zeros(0, dtype=torch.int64),
        max_seqlen_q=max(count for _, count in rows),
        max_seqlen_k=max(seq_lens),
    )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("window", [0, 1, 70])
@pytest.mark.parametrize("heads", HEADS)
def test_attention(
    native: NativeKernels, heads: tuple[int, int, int], window: int, dtype: torch.dtype
) -> None:
    num_heads, num_kv_heads, head_dim = heads
    metadata = metadata_of(ROWS)
    num_blocks = int(metadata.block_tables.max()) + 1
    size = (num_blocks, BLOCK_SIZE, num_kv_heads, head_dim)
    keys, values = random(*size, seed=1, dtype=dtype), random(*size, seed=2, dtype=dtype)
    num_tokens = int(metadata.cu_seqlens_q[-1])
    query = random(num_tokens, num_heads, head_dim, seed=3, dtype=dtype)
    shape = AttentionShape(num_heads, num_kv_heads, head_dim, BLOCK_SIZE, dtype, window)
    assert native.takes_heads(shape)
    got = NativeAttentionPlan.of(metadata, shape, native).attend(query, keys, values)
    expected = reference.paged_attention(query, keys, values, metadata, window)
    limit = TOLERANCE[dtype]
    torch.testing.assert_close(got, expected, rtol=limit, atol=limit)

    # A row's only token, and one from the middle of a row, alone: as if the others did not exist.
    for row, offset in ((1, 0), (0, 11)):
        token = int(metadata.cu_seqlens_q[row]) + offset
        num_behind = int(metadata.cu_seqlens_q[row + 1]) - 1 - token
        seq_lens = metadata.seq_lens[row : row + 1] - num_behind
        alone = AttentionMetadata(
            torch.tensor([0, 1], dtype=torch.int32),
            seq_lens,
            metadata.block_tables[row : row + 1].clone(),
            metadata.slot_mapping,
            1,
            int(seq_lens[0]),
        )
        plan = NativeAttentionPlan.of(alone, shape, native)
        again = plan.attend(query[token : token + 1], keys, values)
        assert torch.equal(again[0], got[token])


@pytest.mark.parametrize("dtype", DTYPES)
def test_rotation_and_cache(native: NativeKernels, dtype: torch.dtype) -> None:
    """The compiled op and the two of torch in its place agree, cache included."""
    tokens, num_heads, num_kv_heads, dim = 11, 6, 2, 64
    qkv = random(tokens, num_heads + 2 * num_kv_heads, dim, seed=4, dtype=dtype)
    angles = torch.rand(tokens, dim // 2, generator=torch.Generator().manual_seed(5))
    cos = torch.cat([angles.cos()] * 2, 1)[:, None].to(dtype)
    sin = torch.cat([-angles.sin(), angles.sin()], 1)[:, None].to(dtype)
    slots = torch.randperm(48, generator=torch.Generator().manual_seed(6))[:tokens]

    def caches() -> tuple[torch.Tensor, torch.Tensor]:
        size = (3, BLOCK_SIZE, num_kv_heads, dim)
        return torch.zeros(size, dtype=dtype), torch.zeros(size, dtype=dtype)

    ours, torchs = caches(), caches()
    query = native.rotary_and_cache(qkv, (cos, sin), ours, slots)
    rotated = kernels.rotary_embedding(qkv[:, :-num_kv_heads], cos, sin)
    key, value = rotated[:, num_heads:], qkv[:, -num_kv_heads:]
    kernels.reshape_and_cache(key, value, torchs[0], torchs[1], slots)
    limit = TOLERANCE[dtype]
    torch.testing.assert_close(query, rotated[:, :num_heads], rtol=limit, atol=limit)
    torch.testing.assert_close(ours, torchs, rtol=limit, atol=limit)


@pytest.mark.parametrize("is_wide", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
def test_norm_and_activation(native: NativeKernels, dtype: torch.dtype, is_wide: bool) -> None:
    """`is_wide`: with a residual in float32."""
    x, residual = random(19, 96, seed=7, dtype=dtype), random(19, 96, seed=8, dtype=dtype)
    weight, limit = random(96, seed=9, dtype=dtype), TOLERANCE[dtype]
    if is_wide:
        residual = random(19, 96, seed=8)

    def check(got: object, expected: object) -> None:
        torch.testing.assert_close(got, expected, rtol=limit, atol=limit)

    check(native.rms_norm(x, weight, 1e-5), reference.rms_norm(x, weight, 1e-5))
    check(native.rms_norm(residual, weight, 1e-5), reference.rms_norm(residual, weight, 1e-5))
    expected = reference.add_rms_norm(x, residual, weight, 1e-5)
    check(native.add_rms_norm(x, residual, weight, 1e-5), expected)
    wide = torch.cat([x * 30, residual.to(dtype)], 1)  # where silu goes to its limits
    check(native.silu_and_mul(wide), reference.silu_and_mul(wide))
    assert torch.equal(native.silu_and_mul(wide[17:18])[0], native.silu_and_mul(wide)[17])
    assert torch.equal(
        native.rms_norm(x[3:4], weight, 1e-5)[0], native.rms_norm(x, weight, 1e-5)[3]
    )


def test_without_a_compiler_torch_takes_over(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """One line says so, and the ops still give the right numbers."""
    monkeypatch.setenv("CXX", "/nowhere/c++")
    with caplog.at_level(logging.WARNING):
        assert native_kernels.__wrapped__() is None
    assert "no native kernels" in caplog.text
    assert "no C++ compiler" in caplog.text
    monkeypatch.setattr(kernels, "native_kernels", lambda: None)
    x, weight = random(3, 64, seed=10), torch.ones(64)
    got, expected = kernels.rms_norm(x, weight, 1e-5), reference.rms_norm(x, weight, 1e-5)
    torch.testing.assert_close(got, expected)


def test_a_compiler_that_fails_is_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CXX", "false")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(BuildError, match="false: exit code 1"):
        build_library()
    assert not list(tmp_path.rglob("*.so"))


def test_they_can_be_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SEGUE_NATIVE_KERNELS", "0")
    assert native_kernels.__wrapped__() is None
