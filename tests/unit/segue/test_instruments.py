"""The table itself: names that dashboards know, and rows that agree."""

from __future__ import annotations

import re

import pytest

from segue.instruments import INSTRUMENTS, Instrument, Kind

NAME = re.compile(r"(vllm|segue):[a-z0-9_]+|gen_ai\.server\.[a-z_.]+")


@pytest.mark.parametrize("row", INSTRUMENTS, ids=lambda row: f"{row.service.value}-{row.name}")
def test_a_row_is_complete(row: Instrument) -> None:
    assert NAME.fullmatch(row.name)
    assert row.text.endswith(".")
    assert bool(row.buckets) is (row.kind is Kind.HISTOGRAM)
    assert list(row.buckets) == sorted(set(row.buckets))
    assert not (row.kind is Kind.COUNTER and row.name.endswith("_total"))


def test_a_name_is_one_thing() -> None:
    """Where two services have it, sums over both must make sense of its type and labels."""
    shapes: dict[str, set[object]] = {}
    for row in INSTRUMENTS:
        shapes.setdefault(row.name, set()).add((row.kind, row.labels, row.buckets))
    assert {name: shape for name, shape in shapes.items() if len(shape) > 1} == {}


def test_a_service_has_a_name_once() -> None:
    names = [(row.service, row.name) for row in INSTRUMENTS]
    assert len(names) == len(set(names))


def test_only_gauges_are_said_by_two_services() -> None:
    """A count that two services export would be doubled by every sum."""
    counted = [row.name for row in INSTRUMENTS if row.kind is not Kind.GAUGE]
    assert len(counted) == len(set(counted))
