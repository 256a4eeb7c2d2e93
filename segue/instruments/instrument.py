"""One row of the table of instruments, and how rows are written down.

Knows nothing about who counts or shows. Invariant: a row says all that a page needs to show it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from segue.instruments.buckets import Buckets


class Service(Enum):
    GATEWAY = "gateway"
    SCHEDULER = "scheduler"
    EXECUTOR = "executor"


class Kind(Enum):
    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(slots=True, frozen=True)
class Instrument:
    """`text` is what HELP says. `when`: it has no samples before that; empty: from the start on."""

    service: Service
    name: str
    kind: Kind
    text: str
    labels: tuple[str, ...]
    buckets: Buckets = ()
    when: str = ""
    is_otlp: bool = False  # pushed over OTLP, and on no page

    @property
    def page_name(self) -> str:
        """As queries name it; of a histogram, what stands before `_bucket`, `_sum`, `_count`."""
        return f"{self.name}_total" if self.kind is Kind.COUNTER else self.name


MODEL = ("model_name",)
ENGINE = ("model_name", "engine")
EXECUTOR = ("executor_id",)


def counter(
    service: Service, name: str, text: str, labels: tuple[str, ...], when: str = ""
) -> Instrument:
    return Instrument(service, name, Kind.COUNTER, text, labels, when=when)


def gauge(
    service: Service, name: str, text: str, labels: tuple[str, ...], when: str = ""
) -> Instrument:
    return Instrument(service, name, Kind.GAUGE, text, labels, when=when)


def histogram(
    service: Service, name: str, text: str, labels: tuple[str, ...], buckets: Buckets
) -> Instrument:
    return Instrument(service, name, Kind.HISTOGRAM, text, labels, buckets)
