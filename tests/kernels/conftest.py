"""The native kernels are compiled before the first test here."""

from __future__ import annotations

from tests.native_kernels import compiled_kernels, linear_kind, native

__all__ = ["compiled_kernels", "linear_kind", "native"]
