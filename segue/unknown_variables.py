"""Tells of variables with our prefix that nobody reads: most are misspelt settings.

Knows names, no values. Invariant: it refuses nothing, since services share an environment, and
other programs may use the prefix too.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable
from difflib import get_close_matches

from segue.known_variables import KNOWN_VARIABLES

PREFIX = "SEGUE_"


def warn_of_unknown(program: str, variables: Iterable[str], own: Collection[str]) -> None:
    """One line on stderr for each. `own`: what the program itself reads."""
    known = KNOWN_VARIABLES.union(own)
    for name in sorted(variables):
        if name.startswith(PREFIX) and name not in known:
            said = f"{program}: warning: {name} is no setting of Segue{_advice(name, known)}"
            print(said, file=sys.stderr)


def _advice(name: str, known: Collection[str]) -> str:
    """The prefix is left out: it would make all of them look alike."""
    bare = {one.removeprefix(PREFIX) for one in known}
    close = get_close_matches(name.removeprefix(PREFIX), bare, n=1)
    return f"; did you mean {PREFIX}{close[0]}?" if close else ""
