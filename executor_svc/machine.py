"""`python -m executor_svc.machine`: what an executor would find here, as one JSON object.

For `segue doctor`, which may not import torch. Knows torch's and the compiler's names, no model.
Invariant: exit code 0 and null where something is missing; nothing is compiled.
"""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any


def look() -> dict[str, Any]:
    if find_spec("torch") is None:
        return {"torch": None}
    import torch  # here: a machine without it gets an answer, too

    from kernels.native import build

    compiler, library = None, None
    try:
        command = build.find_compiler()
        path = build.library_path(command)
        compiler, library = " ".join(command), str(path) if path.exists() else None
    except build.BuildError:
        pass
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return {
        "torch": torch.__version__,
        "gpus": [torch.cuda.get_device_name(index) for index in range(count)],
        "has_nvidia_device": Path("/dev/nvidia0").exists(),
        "has_triton": find_spec("triton") is not None,
        "compiler": compiler,
        "library": library,
        "build_module": build.__name__.rpartition(".")[0],
    }


if __name__ == "__main__":
    print(json.dumps(look()))
