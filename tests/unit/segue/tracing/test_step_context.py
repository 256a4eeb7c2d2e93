"""Which steps are kept, and that a step's traceparent tells all that its successor needs."""

from __future__ import annotations

from itertools import pairwise

import pytest

from segue.tracing.step_context import is_kept_by_ratio, new_step_context, step_context

NOW_NS = 1_790_000_000_123_456_789


@pytest.mark.parametrize(("ratio", "kept"), [(1.0, 1000), (0.0, 0), (0.1, 100), (0.25, 250)])
def test_a_ratio_keeps_that_share_of_the_steps(ratio: float, kept: int) -> None:
    assert sum(is_kept_by_ratio(step_id, ratio) for step_id in range(1, 1001)) == kept


def test_kept_steps_are_spread_evenly() -> None:
    kept = [step_id for step_id in range(1, 101) if is_kept_by_ratio(step_id, 0.125)]
    assert {b - a for a, b in pairwise(kept)} == {8}


def test_a_successor_reads_ids_and_start_out_of_the_stored_step() -> None:
    planned = new_step_context("leader e0 1 17", NOW_NS, is_sampled=True)
    found = step_context(planned.execute.traceparent())
    assert found is not None
    assert (found.root.trace_id, found.root.span_id) == (
        planned.root.trace_id,
        planned.root.span_id,
    )
    assert found.execute.span_id == planned.execute.span_id != planned.root.span_id
    assert found.planned_ns == NOW_NS // 1000 * 1000


def test_steps_of_two_leaders_differ() -> None:
    one = new_step_context("a e0 1 17", NOW_NS, is_sampled=True)
    other = new_step_context("b e0 1 17", NOW_NS, is_sampled=True)
    assert one.root.trace_id != other.root.trace_id
    assert one.root.span_id != other.root.span_id


def test_a_step_planned_without_tracing_has_no_context() -> None:
    assert step_context("") is None
