"""Paged attention of mixed batches against the reference, and bit by bit against itself alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import kernels
from kernels import AttentionMetadata, AttentionShape, reference
from kernels.chunk_attention import choose_tile_tokens

DTYPES = [torch.float32, torch.bfloat16]
# (num_heads, num_kv_heads, head_dim, block_size)
SHAPES = [(9, 3, 64, 16), (4, 4, 16, 4), (6, 1, 32, 8), (4, 2, 24, 48)]
# (queries, context): decodes, a prefill, chunks; one of them over three chunks of keys.
ROWS = [(1, 1), (1, 300), (17, 17), (40, 200), (1, 129), (3, 128), (2, 260), (129, 129)]
NUM_SLOTS = 8192


class CountedCalls(TorchDispatchMode):
    """Torch calls by name, views aside: they touch no element, and one row needs fewer of them."""

    VIEWS = frozenset({"view", "_unsafe_view", "_reshape_alias", "as_strided"})

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        if name not in self.VIEWS:
            self.counts[name] += 1
        return func(*args, **(kwargs or {}))


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class Case:
    """A cache full of noise, with rows in scattered blocks of it."""

    def __init__(self, shape: AttentionShape, rows: list[tuple[int, int]]) -> None:
        generator = torch.Generator().manual_seed(11)
        num_blocks = NUM_SLOTS // shape.block_size
        size = (num_blocks, shape.block_size, shape.num_kv_heads, shape.head_dim)
        self.shape = shape
        self.rows = rows
        self.key_cache = torch.randn(size, generator=generator).to(shape.dtype)
        self.value_cache = torch.randn(size, generator=generator).to(shape.dtype)
        num_tokens = sum(num_queries for num_queries, _ in rows)
        query = torch.randn(num_tokens, shape.num_heads, shape.head_dim, generator=generator)
        self.query = query.to(shape.dtype)
        free = torch.randperm(num_blocks, generator=generator).tolist()
        self.tables: list[list[int]] = []
        for _, context in rows:
            count = -(-context // shape.block_size)
            self.tables.append(free[:count])
            free = free[count:]

    def metadata(self, picked: list[int]) -> AttentionMetadata:
        lengths = torch.tensor([self.rows[row][0] for row in picked])
        width = max(len(self.tables[row]) for row in picked)
        tables = [self.tables[row] + [0] * (width - len(self.tables[row])) for row in picked]
        contexts = [self.rows[row][1] for row in picked]
        return AttentionMetadata(
            cu_seqlens_q=torch.cat([torch.zeros(1), lengths.cumsum(0)]).int(),
            seq_lens=torch.tensor(contexts, dtype=torch.int32),
            block_tables=torch.tensor(tables, dtype=torch.int32),
            slot_mapping=torch.zeros(int(lengths.sum()), dtype=torch.int64),
            max_seqlen_q=int(lengths.max()),
            max_seqlen_k=max(contexts),
        )

    def queries(self, picked: list[int]) -> torch.Tensor:
        starts = [sum(n for n, _ in self.rows[:row]) for row in picked]
        parts = [self.query[s : s + self.rows[r][0]] for s, r in zip(starts, picked, strict=True)]
        return torch.cat(parts)

    def attend(self, picked: list[int]) -> torch.Tensor:
        plan = kernels.plan_attention(self.metadata(picked), self.shape)
        return kernels.paged_attention(self.queries(picked), self.key_cache, self.value_cache, plan)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_agrees_with_the_reference(shape: tuple[int, int, int, int], dtype: torch.dtype) -> None:
    case = Case(AttentionShape(*shape, dtype), ROWS)
    everyone = list(range(len(ROWS)))
    expected = reference.paged_attention(
        case.query, case.key_cache, case.value_cache, case.metadata(everyone)
    )
    tolerance = 1e-5 if dtype == torch.float32 else 2e-2
    torch.testing.assert_close(case.attend(everyone), expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("window", [1, 16, 100, 128, 299])
def test_a_window_agrees_with_the_reference(window: int, dtype: torch.dtype) -> None:
    """Of a query's context, only the last positions count, whole chunks left out or not."""
    case = Case(AttentionShape(4, 2, 16, 16, dtype, window), ROWS)
    everyone = list(range(len(ROWS)))
    expected = reference.paged_attention(
        case.query, case.key_cache, case.value_cache, case.metadata(everyone), window
    )
    tolerance = 1e-5 if dtype == torch.float32 else 2e-2
    got = case.attend(everyone)
    torch.testing.assert_close(got, expected, rtol=tolerance, atol=tolerance)
    together = got.split([num_queries for num_queries, _ in ROWS])
    for row in everyone:
        assert torch.equal(case.attend([row]), together[row]), ROWS[row]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_rows_stand_alone(shape: tuple[int, int, int, int], dtype: torch.dtype) -> None:
    """In any order and company a row has the same bits."""
    case = Case(AttentionShape(*shape, dtype), ROWS)
    everyone = list(range(len(ROWS)))
    together = case.attend(everyone).split([num_queries for num_queries, _ in ROWS])
    for row in everyone:
        assert torch.equal(case.attend([row]), together[row]), ROWS[row]
    backwards = case.attend(everyone[::-1]).split([ROWS[r][0] for r in everyone[::-1]])
    for row, output in zip(everyone[::-1], backwards, strict=True):
        assert torch.equal(output, together[row]), ROWS[row]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("window", [0, 30, 150])
@pytest.mark.parametrize("shape", SHAPES)
def test_a_token_does_not_depend_on_its_chunk(
    shape: tuple[int, int, int, int], window: int, dtype: torch.dtype
) -> None:
    """The last token of a prefill has the bits of a decode at its position."""
    whole = Case(AttentionShape(*shape, dtype, window), [(300, 300)])
    output = whole.attend([0])
    for num_queries in (1, 2, 43):
        part = Case(whole.shape, [(num_queries, 300)])
        part.tables = whole.tables
        part.query = whole.query[-num_queries:]
        assert torch.equal(part.attend([0]), output[-num_queries:])


def test_many_pairs_are_cut_into_slabs(monkeypatch: pytest.MonkeyPatch) -> None:
    """How many (tile, chunk) pairs go into one call is a matter of memory, not of the result."""
    case = Case(AttentionShape(4, 2, 16, 16, torch.float32), [(300, 300), (1, 290), (1, 20)])
    expected = case.attend([0, 1, 2])
    monkeypatch.setattr("kernels.attention_plan.MAX_PAIRS", 1)
    assert torch.equal(case.attend([0, 1, 2]), expected)


@pytest.mark.parametrize("dtype", DTYPES)
def test_tiles_are_exact_here(dtype: torch.dtype) -> None:
    """What the self-check would warn of, for the demo model's shape."""
    assert choose_tile_tokens(AttentionShape(9, 3, 64, 16, dtype), 1).is_exact


@pytest.mark.parametrize("dtype", DTYPES)
def test_without_torchs_flash_attention(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is private to torch; where it is missing, the same is computed more slowly."""
    case = Case(AttentionShape(6, 2, 16, 16, dtype), ROWS)
    expected = case.attend(list(range(len(ROWS))))
    monkeypatch.setattr("kernels.chunk_attention.flash_attention", None)
    choose_tile_tokens.cache_clear()
    got = case.attend(list(range(len(ROWS))))
    choose_tile_tokens.cache_clear()
    tolerance = 1e-5 if dtype == torch.float32 else 2e-2
    torch.testing.assert_close(got, expected, rtol=tolerance, atol=tolerance)


def test_number_of_calls_does_not_depend_on_the_batch() -> None:
    """No loop over tokens or rows: 32 decodes take as many torch calls as one."""
    shape = AttentionShape(9, 3, 64, 16, torch.float32)
    counts: list[Counter[str]] = []
    for num_rows in (1, 32):
        case = Case(shape, [(1, 200)] * num_rows)
        picked = list(range(num_rows))
        case.attend(picked)  # what is tried once is tried here
        with CountedCalls() as calls:
            plan = kernels.plan_attention(case.metadata(picked), shape)
            kernels.paged_attention(case.query, case.key_cache, case.value_cache, plan)
        counts.append(calls.counts)
    assert counts[0] == counts[1]
