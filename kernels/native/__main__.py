"""`python -m kernels.native`: compiles the CPU kernels now, so that no service waits for it later.

Invariant: exit code 0 either way, since everything runs without them; one line says which it is.
"""

from __future__ import annotations

from kernels.native.build import BuildError, build_library

try:
    print(f"native kernels: {build_library()}")
except BuildError as error:
    print(f"no native kernels, torch's are used instead, which are slower: {error}")
