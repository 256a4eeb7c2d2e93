"""Repairs of triton 3.7's interpreter, which keeps bfloat16 as 16 bits of an integer.

It cuts float32 off where a GPU rounds to nearest even, and multiplies matrices of bfloat16 as
integers. Knows the interpreter, no kernel. Invariant: what other dtypes give is unchanged.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch


def repair_bfloat16() -> None:
    import triton.language as tl
    from triton.runtime import interpreter as module

    interpreter: Any = module
    builder = interpreter.InterpreterBuilder
    convert, create_dot = interpreter._convert_float, builder.create_dot

    def rounded(data: Any, source: Any, target: Any, rounding_mode: Any) -> Any:
        if (source, target) != (tl.float32, tl.bfloat16):
            return convert(data, source, target, rounding_mode)
        wide = torch.from_numpy(np.ascontiguousarray(data, dtype=np.float32))
        return wide.bfloat16().view(torch.int16).numpy().view(np.uint16)

    def widened(handle: Any) -> Any:
        if handle.dtype.scalar != tl.bfloat16:
            return handle
        bits = torch.from_numpy(np.ascontiguousarray(handle.data).view(np.int16))
        return interpreter.TensorHandle(bits.view(torch.bfloat16).float().numpy(), tl.float32)

    def dot(self: Any, a: Any, b: Any, *others: Any) -> Any:
        return create_dot(self, widened(a), widened(b), *others)

    interpreter._convert_float = rounded
    builder.create_dot = dot
