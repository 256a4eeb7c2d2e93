"""A service's /metrics as Prometheus' own parser reads it, and a row of the table held to it.

Knows the text format and the table; starts nothing. Invariant: a page that the parser refuses is an
error, never an empty page.
"""

from __future__ import annotations

from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families

from segue.instruments import Instrument, Kind, up_to
from segue.instruments.buckets import REQUEST_TOKENS

Labels = tuple[tuple[str, str], ...]


@dataclass(slots=True, frozen=True)
class Page:
    """`types` by the family's name; `samples` by the sample's name, then by its labels."""

    types: dict[str, str]
    samples: dict[str, dict[Labels, float]]

    @classmethod
    def parse(cls, text: str) -> Page:
        types: dict[str, str] = {}
        samples: dict[str, dict[Labels, float]] = {}
        for family in text_string_to_metric_families(text):
            assert family.name not in types, f"{family.name} is on the page twice"
            assert family.documentation
            types[family.name] = family.type
            for sample in family.samples:
                labels = tuple(sorted(sample.labels.items()))
                samples.setdefault(sample.name, {})[labels] = sample.value
        return cls(types, samples)

    def total(self, name: str, **labels: str) -> float:
        """The sum of all samples that have these labels."""
        wanted = set(labels.items())
        rows = self.samples.get(name, {}).items()
        return sum(value for values, value in rows if wanted <= set(values))

    def counters(self) -> dict[tuple[str, Labels], float]:
        """Everything that must only grow: totals, and histograms' buckets, counts and sums."""
        endings = ("_total", "_bucket", "_count", "_sum")
        return {
            (name, labels): value
            for name, rows in self.samples.items()
            if name.endswith(endings)
            for labels, value in rows.items()
        }


def faults(page: Page, row: Instrument, longest: int) -> list[str]:
    """What of the row is not on the page as the table has it."""
    family = row.name.removesuffix("_total") if row.kind is Kind.COUNTER else row.name
    if page.types.get(family) != row.kind.value:
        return [f"{row.name}: its type is {page.types.get(family)}, not {row.kind.value}"]
    is_histogram = row.kind is Kind.HISTOGRAM
    samples = page.samples.get(f"{row.name}_bucket" if is_histogram else row.page_name, {})
    if not samples:
        return [] if row.when else [f"{row.name}: no samples"]
    expected = {*row.labels, *(["le"] if is_histogram else [])}
    found = {frozenset(dict(labels)) for labels in samples}
    if found != {frozenset(expected)}:
        return [f"{row.name}: its labels are {found}, not {expected}"]
    bounds = {float(dict(labels)["le"]) for labels in samples} if is_histogram else set()
    buckets = up_to(row.buckets, longest) if row.buckets is REQUEST_TOKENS else row.buckets
    if is_histogram and bounds != {*buckets, float("inf")}:
        return [f"{row.name}: its buckets are {sorted(bounds)}"]
    return []
