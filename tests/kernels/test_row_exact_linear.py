"""Row-exact products: the same row gives the same bits in any batch, and the right numbers."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch.nn.functional as F

from kernels import row_exact_linear
from kernels.row_exact_linear import RowExactLinear, row_classes

DTYPES = [torch.float32, torch.bfloat16]


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(params=["native", "torch"])
def library(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a compiler, if this machine has one, and without."""
    if request.param == "torch":
        monkeypatch.setattr(row_exact_linear, "native_kernels", lambda: None)


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(960, 576), (64, 64), (17, 33), (576, 1536)])
def test_rows_do_not_depend_on_the_batch(shape: tuple[int, int], dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(3)
    weight = torch.randn(shape, generator=generator).to(dtype)
    bias = torch.randn(shape[0], generator=generator).to(dtype)
    x = torch.randn(600, shape[1], generator=generator).to(dtype)
    linear = RowExactLinear(weight, bias)
    expected = linear(x)
    assert linear.row_counts.is_exact
    for start, count in [(0, 1), (7, 1), (599, 1), (3, 5), (0, 33), (100, 64), (50, 513)]:
        assert torch.equal(linear(x[start : start + count]), expected[start : start + count])


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize("dtype", DTYPES)
def test_agrees_with_the_plain_product(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(4)
    weight = torch.randn(96, 64, generator=generator).to(dtype)
    bias = torch.randn(96, generator=generator).to(dtype)
    x = torch.randn(9, 64, generator=generator).to(dtype)
    expected = F.linear(x.double(), weight.double(), bias.double())
    tolerance = 1e-5 if dtype == torch.float32 else 2e-2
    got = RowExactLinear(weight, bias)(x).double()
    torch.testing.assert_close(got, expected, rtol=tolerance, atol=tolerance * 8)


def test_classes_are_told_apart() -> None:
    """A product that sums in another order for few rows, as libraries do."""
    generator = torch.Generator().manual_seed(5)
    weight = torch.randn(8, 64, generator=generator)

    def product(x: torch.Tensor) -> torch.Tensor:
        terms = x[:, None, :] * weight
        if x.shape[0] < 4:
            return terms[..., :32].sum(2) + terms[..., 32:].sum(2)
        return terms.sum(2)

    x = torch.randn(16, 64, generator=generator)
    assert row_classes(product, x, [1, 2, 4, 8, 16]) == [(1, 2), (4, 8, 16)]


def test_a_count_whose_rows_differ_by_place_is_left_out() -> None:
    generator = torch.Generator().manual_seed(6)
    x = torch.randn(4, 16, generator=generator)

    def product(x: torch.Tensor) -> torch.Tensor:
        return x * torch.linspace(1, 1 + 1e-6, len(x)).unsqueeze(1) if len(x) == 4 else x

    assert row_classes(product, x, [1, 2, 4]) == [(1, 2)]
