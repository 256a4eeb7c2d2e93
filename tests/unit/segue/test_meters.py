"""Cells and the page that is built from them and from the table."""

from __future__ import annotations

import pytest

from segue.instruments import INSTRUMENTS, Kind, Service
from segue.meters import Meters, Readings
from tests.metrics_page import Page, faults

LABELS = {"model_name": "m", "engine": "e0"}


def page_of(meters: Meters) -> Page:
    return Page.parse(meters.page().decode())


def test_a_histogram_counts_up_to_and_with_its_bounds() -> None:
    meters = Meters(Service.SCHEDULER, LABELS)
    tokens = meters.distribution("vllm:iteration_tokens_total")
    for value in (1, 8, 9, 20_000):
        tokens.observe(value)
    tokens.observe(30, 2)
    page = page_of(meters)
    counts = {
        le: page.total("vllm:iteration_tokens_total_bucket", le=le)
        for le in ("1.0", "8.0", "16.0", "32.0", "16384.0", "+Inf")
    }
    assert counts == {"1.0": 1, "8.0": 2, "16.0": 3, "32.0": 5, "16384.0": 5, "+Inf": 6}
    assert page.total("vllm:iteration_tokens_total_sum") == 1 + 8 + 9 + 20_000 + 60


def test_token_buckets_end_at_the_longest_request() -> None:
    """As vLLM's do: a bucket that nothing can reach is only more to store."""
    meters = Meters(Service.GATEWAY, LABELS, max_tokens=120)
    assert meters.distribution("vllm:request_prompt_tokens").bounds == (1, 2, 5, 10, 20, 50, 100)
    assert meters.distribution("vllm:e2e_request_latency_seconds").bounds[-1] == 7680.0


def test_the_same_name_and_labels_are_the_same_cell() -> None:
    meters = Meters(Service.GATEWAY, LABELS)
    for _ in range(2):
        meters.tally("vllm:request_success", finished_reason="stop").add()
    assert page_of(meters).total("vllm:request_success_total", finished_reason="stop") == 2


def test_what_is_not_in_the_table_cannot_be_counted() -> None:
    meters = Meters(Service.GATEWAY, LABELS)
    with pytest.raises(KeyError):
        meters.tally("segue:no_such_thing")
    with pytest.raises(KeyError):
        meters.tally("segue:steps")  # the scheduler's
    with pytest.raises(AssertionError):
        meters.tally("segue:gateway_sessions_opened", colour="red")
    with pytest.raises(AssertionError):
        meters.tally("vllm:e2e_request_latency_seconds")


def test_a_reading_is_asked_for_at_each_scrape() -> None:
    values = iter([1, 2])

    def read(page: Readings) -> None:
        page.set("segue:epoch", next(values))

    meters = Meters(Service.SCHEDULER, LABELS, read=read)
    assert [page_of(meters).total("segue:epoch") for _ in range(2)] == [1, 2]


def test_a_page_says_what_each_row_is_before_anything_was_counted() -> None:
    """A scrape of an idle service already tells names and types."""
    types = page_of(Meters(Service.EXECUTOR, {"executor_id": "e0"})).types
    rows = [row for row in INSTRUMENTS if row.service is Service.EXECUTOR]
    assert {row.name: row.kind.value for row in rows} == types


def test_what_a_page_lacks_is_a_fault() -> None:
    """The check that the e2e test relies on does see a wrong type, label and bucket."""
    row = next(r for r in INSTRUMENTS if r.kind is Kind.HISTOGRAM and not r.is_otlp)
    text = f"# HELP {row.name} x\n# TYPE {row.name} "
    wrong_type = Page.parse(text + "counter\n")
    bucket = f'{row.name}_bucket{{le="+Inf",model_name="m",engine="a"}} 1.0\n'
    wrong_buckets = Page.parse(f"{text}histogram\n{bucket}")
    wrong_labels = Page.parse(f"{text}histogram\n{bucket.replace('engine', 'motor')}")
    for page, word in (
        (wrong_type, "type"),
        (wrong_buckets, "buckets"),
        (wrong_labels, "labels"),
        (Page({row.name: "histogram"}, {}), "samples"),
    ):
        (fault,) = faults(page, row, 512)
        assert word in fault
