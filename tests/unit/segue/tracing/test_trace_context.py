"""W3C contexts as they are read and written, and ids that two schedulers make alike."""

from __future__ import annotations

import pytest

from segue.tracing.trace_context import TraceContext, parse_traceparent, request_context

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


def test_a_traceparent_is_read_and_written_alike() -> None:
    text = f"00-{TRACE}-{SPAN}-01"
    context = parse_traceparent(text)
    assert context is not None
    assert context.traceparent() == text
    assert context.is_sampled
    assert context.is_remote


def test_unsampled_stays_unsampled() -> None:
    context = parse_traceparent(f"00-{TRACE}-{SPAN}-00")
    assert context is not None
    assert not request_context(context, "r1").is_sampled


@pytest.mark.parametrize(
    "text",
    [
        "",
        "nonsense",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"ff-{TRACE}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}-01-more",
        f"00-{TRACE[1:]}-{SPAN}-01",
    ],
)
def test_what_is_no_traceparent_is_no_parent(text: str) -> None:
    assert parse_traceparent(text) is None


def test_a_newer_version_is_read_as_far_as_we_know_it() -> None:
    assert parse_traceparent(f"cc-{TRACE}-{SPAN}-01-more") is not None


def test_whoever_ends_a_request_knows_its_span() -> None:
    """Nothing but the submission is needed, and that is in Redis."""
    parent = TraceContext(7, 9)
    first, second = request_context(parent, "c-0"), request_context(parent, "c-1")
    assert first == request_context(parent, "c-0")
    assert first.trace_id == second.trace_id == 7
    assert len({first.span_id, second.span_id, parent.span_id}) == 3
