"""Counts and histograms that cost a hot path next to nothing, and the page that shows them.

A cell is made once, by name and labels out of the table of instruments, and kept by whoever counts;
counting is then an addition, without a lock or a look-up. Knows nothing about what is counted.
Invariant: a page has every instrument of its service; a cell is only ever raised, so a count falls
to zero with its process and never otherwise. A page may be read in another thread: it may lack what
is being counted at that moment.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import accumulate
from typing import cast

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString  # pyright: ignore[reportUnknownVariableType]

from segue.instruments import INSTRUMENTS, Buckets, Instrument, Kind, Service, up_to
from segue.instruments.buckets import REQUEST_TOKENS

_bound_text = cast(Callable[[float], str], floatToGoString)
LabelValues = tuple[str, ...]


class Tally:
    """A count, or an amount that only grows."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value: float = 0

    def add(self, amount: float = 1) -> None:
        self.value += amount


class Distribution:
    """Values by bucket. `observe` several at once where they are the same."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Buckets) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float, count: int = 1) -> None:
        self.counts[bisect_left(self.bounds, value)] += count
        self.total += value * count

    def cumulative(self) -> list[tuple[str, float]]:
        bounds = [*map(_bound_text, self.bounds), "+Inf"]
        return list(zip(bounds, accumulate(list(self.counts)), strict=True))


class Readings:
    """What things stand at, for one scrape."""

    def __init__(self, key: Callable[[str, Mapping[str, str]], LabelValues]) -> None:
        self._key = key
        self.rows: dict[str, dict[LabelValues, float]] = {}

    def set(self, name: str, value: float, **labels: str) -> None:
        self.rows.setdefault(name, {})[self._key(name, labels)] = value


class Meters(Collector):
    """One service's. `constants` are the labels that have one value in this process."""

    def __init__(
        self,
        service: Service,
        constants: Mapping[str, str],
        *,
        max_tokens: int = 1 << 20,
        read: Callable[[Readings], None] | None = None,
    ) -> None:
        """`read` is asked at each scrape for what is not counted here but looked up."""
        self._rows = {i.name: i for i in INSTRUMENTS if i.service is service and not i.is_otlp}
        self._constants = dict(constants)
        self._max_tokens = max_tokens
        self.read = read
        self._tallies: dict[str, dict[LabelValues, Tally]] = {}
        self._distributions: dict[str, dict[LabelValues, Distribution]] = {}

    def tally(self, name: str, **labels: str) -> Tally:
        self._check(name, Kind.COUNTER)
        return self._tallies.setdefault(name, {}).setdefault(self._key(name, labels), Tally())

    def distribution(self, name: str, **labels: str) -> Distribution:
        row = self._check(name, Kind.HISTOGRAM)
        cells = self._distributions.setdefault(name, {})
        key = self._key(name, labels)
        if key not in cells:
            is_cut = row.buckets is REQUEST_TOKENS
            bounds = up_to(row.buckets, self._max_tokens) if is_cut else row.buckets
            cells[key] = Distribution(bounds)
        return cells[key]

    def page(self) -> bytes:
        registry = CollectorRegistry()
        registry.register(self)
        return generate_latest(registry)

    def describe(self) -> Iterable[Metric]:
        """So that a registry does not read the cells to learn their names."""
        return ()

    def collect(self) -> Iterator[Metric]:
        readings = Readings(self._key)
        if self.read is not None:
            self.read(readings)
        for row in self._rows.values():
            yield self._family(row, readings.rows.get(row.name, {}))

    def _family(self, row: Instrument, readings: Mapping[LabelValues, float]) -> Metric:
        if row.kind is Kind.HISTOGRAM:
            histogram = HistogramMetricFamily(row.name, row.text, labels=row.labels)
            for values, cell in list(self._distributions.get(row.name, {}).items()):
                histogram.add_metric(values, cell.cumulative(), cell.total)
            return histogram
        is_counter = row.kind is Kind.COUNTER
        family = (CounterMetricFamily if is_counter else GaugeMetricFamily)(
            row.name, row.text, labels=row.labels
        )
        for values, tally in list(self._tallies.get(row.name, {}).items()):
            family.add_metric(values, tally.value)
        for values, value in readings.items():
            family.add_metric(values, value)
        return family

    def _key(self, name: str, labels: Mapping[str, str]) -> LabelValues:
        expected = self._rows[name].labels
        assert set(labels) <= set(expected), f"{name} has no {set(labels)}"
        values = {**self._constants, **labels}
        return tuple(values[label] for label in expected)

    def _check(self, name: str, kind: Kind) -> Instrument:
        row = self._rows[name]
        assert row.kind is kind, f"{name} is a {row.kind.value}"
        return row
