"""Tries, at start, what bit-exactness stands on: products, attention and norms of this very model.

Knows the model's shapes, no request. Invariant: it changes nothing; where this CPU, with this
library and this number of threads, does not keep the promise, it says so, and the model still runs.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import torch

from executor_svc.models.causal_lm import CausalLM
from kernels import RowExactLinear, is_attention_exact, rms_norm, silu_and_mul

log = logging.getLogger("segue.executor")

NUM_ROWS = 100
ROWS_ALONE = (0, 57, 99)
PROBE_SEED = 20


@torch.inference_mode()
def check_bit_exactness(model: CausalLM, block_size: int) -> list[str]:
    """What depends on the batch here, in words; empty: nothing found. Each is logged as well."""
    findings = [
        *_check_products(model.products()),
        *_check_attention(model, block_size),
        *_check_rows("rms_norm", lambda x: rms_norm(x, torch.ones(x.shape[1]), 1e-5)),
        *_check_rows("silu_and_mul", silu_and_mul),
    ]
    for finding in findings:
        log.warning(
            "%s: a request's text may depend on what runs beside it (%s, %d threads)",
            finding,
            torch.backends.cpu.get_cpu_capability(),
            torch.get_num_threads(),
        )
    return findings


def _check_products(products: dict[str, RowExactLinear]) -> list[str]:
    """Their row counts were chosen by a probe; here they multiply by the model's own weights."""
    findings: list[str] = []
    for name, product in products.items():
        if not product.row_counts.is_exact:
            findings.append(f"{name}: no two numbers of rows sum in the same order")
            continue
        generator = torch.Generator().manual_seed(PROBE_SEED)
        x = torch.randn(NUM_ROWS, product.in_features, generator=generator).to(product.dtype)
        findings += _compare(name, product, x)
    return findings


def _check_attention(model: CausalLM, block_size: int) -> list[str]:
    shape = model.attention_shape(block_size)
    if shape is None or is_attention_exact(shape):
        return []
    return ["attention: a query's result depends on the queries beside it"]


def _check_rows(name: str, op: Callable[[torch.Tensor], torch.Tensor]) -> list[str]:
    generator = torch.Generator().manual_seed(PROBE_SEED)
    return _compare(name, op, torch.randn(NUM_ROWS, 576, generator=generator))


def _compare(name: str, op: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor) -> list[str]:
    together = op(x)
    if all(torch.equal(op(x[row : row + 1])[0], together[row]) for row in ROWS_ALONE):
        return []
    return [f"{name}: a row alone has other bits than among {len(x)}"]
