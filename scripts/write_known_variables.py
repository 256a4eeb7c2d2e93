"""Writes segue/known_variables.py from the configuration of `segue serve` and of each service.

Knows the dataclasses, and by name the variables that are no setting. Invariant: the same fields
give the same file; a test holds the committed one to it. It is written, since no service may import
another's configuration, and its image has none.

    .venv/bin/python -m scripts.write_known_variables [TARGET]
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path

from scripts.write_configuration_page import ROOT, SECTIONS
from segue.config import variable

TARGET = ROOT / "segue" / "known_variables.py"
NO_SETTINGS = (
    *("SEGUE_CACHE", "SEGUE_NATIVE_KERNELS", "SEGUE_URL"),  # read by the code itself
    *("SEGUE_TAG", "SEGUE_DOCKER_ROOT", "SEGUE_ROTEL_AGENT"),  # by compose, a script and the tests
)
HEAD = '''\
"""All variables `SEGUE_…` that Segue reads, whichever of its programs.

Written by `make docs` from the dataclass of each service; change it there, or in
`scripts/write_known_variables.py`. Knows names only. Invariant: a test holds it to them.
"""

from __future__ import annotations

from typing import Final

KNOWN_VARIABLES: Final = frozenset(
    {
'''
TAIL = "    }\n)\n"


def module_text() -> str:
    settings = {variable(one.name) for _, cls in SECTIONS for one in fields(cls)}
    names = sorted(settings.union(NO_SETTINGS))
    return HEAD + "".join(f'        "{name}",\n' for name in names) + TAIL


def main(arguments: Sequence[str]) -> int:
    target = Path(arguments[0]) if arguments else TARGET
    target.write_text(module_text(), encoding="utf-8")
    print(target)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
