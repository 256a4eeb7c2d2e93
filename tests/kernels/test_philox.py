"""The uniform numbers are those of the published generator, so that a GPU can draw the same."""

from __future__ import annotations

import pytest
import torch

from kernels.reference import philox_4x32, philox_uniform

# Known answers of philox4x32-10 from the authors' Random123 library.
KNOWN_ANSWERS = [
    ([0, 0, 0, 0], [0, 0], [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]),
    (
        [0xFFFFFFFF] * 4,
        [0xFFFFFFFF] * 2,
        [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD],
    ),
    (
        [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344],
        [0xA4093822, 0x299F31D0],
        [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1],
    ),
]


@pytest.mark.parametrize(("counter", "key", "expected"), KNOWN_ANSWERS)
def test_known_answers(counter: list[int], key: list[int], expected: list[int]) -> None:
    words = philox_4x32([torch.tensor([c]) for c in counter], [torch.tensor([k]) for k in key])
    assert [int(word) for word in words] == expected


def test_each_input_matters() -> None:
    """Seeds that differ in the high half only, choices, and indices give other numbers."""
    seeds = torch.tensor([1, 2, 1 + 2**32, -1, 1, 1])
    choices = torch.tensor([0, 0, 0, 0, 1, 0])
    indices = torch.tensor([0, 0, 0, 0, 0, 1])
    uniforms = philox_uniform(seeds, choices, indices)
    assert len(set(uniforms.tolist())) == len(seeds)
    assert float(uniforms.min()) > 0
    assert float(uniforms.max()) < 1


def test_uniform() -> None:
    indices = torch.arange(20_000)
    same = torch.zeros_like(indices)
    uniforms = philox_uniform(same + 7, same, indices)
    counts = torch.histc(uniforms, bins=20, min=0, max=1)
    # 1000 in each bin, with a standard deviation of 31.
    assert float((counts - 1000).abs().max()) < 150
