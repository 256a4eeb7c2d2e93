"""What must hold of any set of spans, and words for what a test looks at.

Knows received spans. Invariant: the checks return offenders, so that a failure shows them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from tests.otlp_spans import ReceivedSpan

Reference = tuple[str, str]  # trace id, span id


def references(spans: Sequence[ReceivedSpan]) -> set[Reference]:
    return {(span.trace_id, span.span_id) for span in spans}


def unresolved_parents(spans: Sequence[ReceivedSpan]) -> list[ReceivedSpan]:
    known = references(spans)
    return [s for s in spans if s.parent_id and (s.trace_id, s.parent_id) not in known]


def unresolved_links(spans: Sequence[ReceivedSpan]) -> list[tuple[str, Reference]]:
    known = references(spans)
    return [
        (span.name, (link.trace_id, link.span_id))
        for span in spans
        for link in span.links
        if (link.trace_id, link.span_id) not in known
    ]


def exported_twice(spans: Sequence[ReceivedSpan]) -> list[Reference]:
    counts = Counter((span.trace_id, span.span_id) for span in spans)
    return [reference for reference, count in counts.items() if count > 1]


def children(spans: Sequence[ReceivedSpan], parent: ReceivedSpan) -> list[str]:
    """Names of the children, by their start."""
    found = [s for s in spans if (s.trace_id, s.parent_id) == (parent.trace_id, parent.span_id)]
    return [span.name for span in sorted(found, key=lambda span: span.start_ns)]


def of_request(spans: Sequence[ReceivedSpan], request_id: str) -> ReceivedSpan:
    (span,) = [
        span
        for span in spans
        if span.name == "request" and span.attributes["segue.request.id"] == request_id
    ]
    return span
