"""Which metrics a PromQL expression names, and by which labels; enough of the language for ours.

Knows the words of the language and no metric. Invariant: what it does not understand it reports as
a metric's name, so that a test fails rather than passes over it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from itertools import pairwise

TOKEN = re.compile(
    r"""(?P<string>"[^"]*"|'[^']*')|(?P<range>\[[^\]]*\])|(?P<number>\b\d[\w.]*)"""
    r"""|(?P<name>[$a-zA-Z_:][a-zA-Z0-9_:]*)|(?P<sign>[^\s])"""
)
GROUPING = {"by", "without", "on", "ignoring", "group_left", "group_right"}
WORDS = {"and", "or", "unless", "bool", "offset", "inf", "nan"}


@dataclass(slots=True)
class Named:
    """`metrics`: each use of a metric with the labels that it is matched by."""

    metrics: list[tuple[str, set[str]]] = field(default_factory=list[tuple[str, set[str]]])
    grouped_by: set[str] = field(default_factory=set[str])


def names_in(expression: str) -> Named:
    tokens = [match[0] for match in TOKEN.finditer(expression)]
    named, position = Named(), 0
    while position < len(tokens):
        token = tokens[position]
        following = tokens[position + 1] if position + 1 < len(tokens) else ""
        is_name = re.fullmatch(r"[$a-zA-Z_:][a-zA-Z0-9_:]*", token) is not None
        if token in GROUPING and following == "(":
            end = tokens.index(")", position)
            named.grouped_by |= {t for t in tokens[position + 2 : end] if t != ","}
            position = end
        elif is_name and following == "{":
            end = tokens.index("}", position)
            inside = tokens[position + 2 : end]
            labels = {a for a, b in pairwise(inside) if b in ("=", "!") and a != "!"}
            named.metrics.append((token, labels))
            position = end
        elif is_name and following not in {"(", *GROUPING} and token not in WORDS:
            named.metrics.append((token, set()))
        position += 1
    return named
