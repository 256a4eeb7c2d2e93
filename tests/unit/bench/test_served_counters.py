"""What the services count, read from their text, as differences of two moments."""

from __future__ import annotations

import pytest

from tests.bench.served_counters import difference, histogram_quantile, parse_samples

TEXT = """\
# HELP segue:steps segue:steps
# TYPE segue:steps counter
segue:steps_total 12.0
vllm:request_success_total{finished_reason="stop"} 2.0
vllm:request_success_total{finished_reason="length"} 3.0
wait_seconds_bucket{le="0.5"} 4.0
wait_seconds_bucket{le="1.0"} 8.0
wait_seconds_bucket{le="+Inf"} 10.0
"""


def test_labels_are_summed_and_buckets_keep_their_bounds() -> None:
    samples = parse_samples(TEXT)
    assert samples == {
        "segue:steps_total": 12.0,
        "vllm:request_success_total": 5.0,
        "wait_seconds_bucket|0.5": 4.0,
        "wait_seconds_bucket|1.0": 8.0,
        "wait_seconds_bucket|inf": 10.0,
    }


def test_what_was_not_there_before_counts_from_zero() -> None:
    assert difference({"a": 5.0, "b": 2.0}, {"a": 3.0}) == {"a": 2.0, "b": 2.0}


@pytest.mark.parametrize(
    ("share", "expected"),
    [
        (0.2, 0.25),  # half of the first bucket's four
        (0.4, 0.5),
        (0.6, 0.75),
        (0.99, 1.0),  # above all finite bounds: the last of them
    ],
)
def test_a_quantile_is_linear_within_its_bucket(share: float, expected: float) -> None:
    assert histogram_quantile(parse_samples(TEXT), "wait_seconds", share) == pytest.approx(expected)


def test_an_empty_histogram_has_no_time() -> None:
    samples = {"wait_seconds_bucket|0.5": 0.0, "wait_seconds_bucket|inf": 0.0}
    assert histogram_quantile(samples, "wait_seconds", 0.5) == 0.0
