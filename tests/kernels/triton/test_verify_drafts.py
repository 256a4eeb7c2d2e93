"""How many sampled tokens are given out, against the reference."""

from __future__ import annotations

import torch

from kernels import reference
from kernels.triton.verify_drafts import verify_drafts
from tests.kernels.triton_device import DEVICE


def test_verify_drafts() -> None:
    """No draft; all right; all wrong; wrong in the middle, and right again behind it."""
    sampled = torch.tensor([5, 1, 2, 3, 9, 9, 4, 5, 6, 7])
    drafts = torch.tensor([0, 1, 2, 0, 8, 9, 4, 8, 6, 0])
    starts = torch.tensor([0, 1, 4, 6, 10], dtype=torch.int32)
    on_device = [part.to(DEVICE) for part in (sampled, drafts, starts)]
    counts = verify_drafts(*on_device, max_positions=4)
    assert counts.tolist() == reference.verify_drafts(sampled, drafts, starts).tolist()
    assert counts.tolist() == [1, 3, 1, 2]
