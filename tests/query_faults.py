"""Whether a query names what there is: metrics of the table of instruments, by labels they have.

Knows the table, and who adds labels to a sample; evaluates nothing. Invariant: a name or a label
that no service exports is told.
"""

from __future__ import annotations

from collections.abc import Set

from segue.instruments import INSTRUMENTS, Kind
from tests.promql import names_in

SCRAPED = frozenset({"job", "instance"})  # Prometheus adds them to each sample
BY_OPERATOR = SCRAPED | {"namespace", "pod", "container", "service", "endpoint"}


def series(added_labels: Set[str]) -> dict[str, set[str]]:
    """Each name that a query can use, with its labels."""
    found: dict[str, set[str]] = {"up": set(added_labels)}
    for row in INSTRUMENTS:
        labels = {*row.labels, *added_labels}
        if row.is_otlp:
            continue
        if row.kind is Kind.HISTOGRAM:
            found[f"{row.name}_bucket"] = labels | {"le"}
            found |= {f"{row.name}_{end}": labels for end in ("sum", "count")}
        else:
            found[row.page_name] = labels
    return found


def faults(expression: str, added_labels: Set[str] = SCRAPED) -> list[str]:
    """What the expression names and no page has; `added_labels` come with the scrape."""
    known, named = series(added_labels), names_in(expression)
    wrong = [f"{name} is not in the table" for name, _ in named.metrics if name not in known]
    wrong += [
        f"{name} has no label {label}"
        for name, labels in named.metrics
        for label in labels - known.get(name, labels)
    ]
    all_labels: set[str] = set().union(*(known.get(name, set()) for name, _ in named.metrics))
    return wrong + [f"nothing has the label {label}" for label in named.grouped_by - all_labels]
