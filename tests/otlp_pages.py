"""What the receiver shows: the answers of Jaeger's query API, and a page with a trace's waterfall.

Knows received spans and HTML. Invariant: a span whose parent did not come is shown as a root, with
a mark, and not left out.
"""

from __future__ import annotations

import html
import json
from collections.abc import Sequence
from typing import Any

from tests.otlp_spans import ReceivedSpan

COLORS = {"segue-gateway": "#2a7ab0", "segue-scheduler": "#c8762b", "segue-executor": "#3f8f4f"}
STYLE = """
body{font:13px/1.5 'DejaVu Sans',sans-serif;margin:16px;color:#222}
table{border-collapse:collapse;width:100%}td,th{padding:2px 8px;text-align:left}
tr{border-bottom:1px solid #eee}a{color:#2a5db0;text-decoration:none}
.row{display:flex;border-bottom:1px solid #f0f0f0}
.name{width:34%;flex:none;box-sizing:border-box;white-space:nowrap;overflow:hidden}
.lane{flex:1;position:relative;height:20px;background:#fafafa}
.bar{position:absolute;top:4px;height:12px;min-width:2px;border-radius:2px}
.time{position:absolute;top:1px;font-size:11px;color:#555;white-space:nowrap}
.event{position:absolute;top:1px;width:2px;height:18px;background:#b00}
.attrs{font-size:11px;color:#555;margin:0 0 4px 20px;word-break:break-all}
.service{font-size:11px;color:#fff;border-radius:3px;padding:0 4px;margin-right:6px}
.error{color:#b00;font-weight:bold}
"""


def jaeger_trace(trace_id: str, spans: Sequence[ReceivedSpan]) -> dict[str, Any]:
    """One trace as Jaeger's /api/traces gives it."""
    processes: dict[str, Any] = {}
    keys: dict[tuple[str, str], str] = {}
    for span in spans:
        owner = (span.service, span.instance)
        if owner not in keys:
            keys[owner] = f"p{len(keys) + 1}"
            processes[keys[owner]] = {"serviceName": span.service, "tags": _tags(span.resource)}
    return {
        "traceID": trace_id,
        "spans": [_jaeger_span(span, keys[(span.service, span.instance)]) for span in spans],
        "processes": processes,
        "warnings": None,
    }


def jaeger_answer(data: list[Any]) -> bytes:
    body = {"data": data, "total": len(data), "limit": 0, "offset": 0, "errors": None}
    return json.dumps(body).encode()


def _jaeger_span(span: ReceivedSpan, process: str) -> dict[str, Any]:
    parent = {"refType": "CHILD_OF", "traceID": span.trace_id, "spanID": span.parent_id}
    links = [
        {"refType": "FOLLOWS_FROM", "traceID": link.trace_id, "spanID": link.span_id}
        for link in span.links
    ]
    status = {} if span.error is None else {"error": True, "otel.status_description": span.error}
    return {
        "traceID": span.trace_id,
        "spanID": span.span_id,
        "operationName": span.name,
        "references": [*([parent] if span.parent_id else []), *links],
        "startTime": span.start_ns // 1000,
        "duration": span.duration_ns // 1000,
        "tags": _tags({**span.attributes, "span.kind": span.kind, **status}),
        "logs": [
            {
                "timestamp": event.at_ns // 1000,
                "fields": _tags({"event": event.name, **event.attributes}),
            }
            for event in span.events
        ],
        "processID": process,
        "warnings": None,
    }


def _tags(attributes: dict[str, Any]) -> list[dict[str, Any]]:
    kinds = {bool: "bool", int: "int64", float: "float64"}
    return [
        {
            "key": key,
            "type": kinds.get(type(value), "string"),
            "value": json.dumps(value) if isinstance(value, list) else value,
        }
        for key, value in attributes.items()
    ]


def index_page(traces: dict[str, list[ReceivedSpan]], limit: int) -> bytes:
    rows: list[str] = []
    for trace_id, spans in list(traces.items())[:limit]:
        root = min(spans, key=lambda span: span.start_ns)
        ms = (max(s.end_ns for s in spans) - root.start_ns) / 1e6
        services = " ".join(_badge(service) for service in sorted({s.service for s in spans}))
        rows.append(
            f"<tr><td><a href='/trace/{trace_id}'>{trace_id[:16]}</a></td>"
            f"<td>{html.escape(root.name)}</td><td>{services}</td>"
            f"<td>{len(spans)} spans</td><td>{ms:.2f} ms</td></tr>"
        )
    return _page("Traces", f"<table>{''.join(rows)}</table>")


def trace_page(trace_id: str, spans: Sequence[ReceivedSpan]) -> bytes:
    start = min((span.start_ns for span in spans), default=0)
    width = max((span.end_ns for span in spans), default=1) - start or 1
    rows = [_row(span, depth, start, width) for span, depth in _in_tree_order(spans)]
    title = f"Trace {trace_id}: {len(spans)} spans, {width / 1e6:.2f} ms"
    return _page(title, "".join(rows))


def _in_tree_order(spans: Sequence[ReceivedSpan]) -> list[tuple[ReceivedSpan, int]]:
    known = {span.span_id for span in spans}
    children: dict[str, list[ReceivedSpan]] = {}
    for span in sorted(spans, key=lambda span: span.start_ns):
        parent = span.parent_id if span.parent_id in known else ""
        children.setdefault(parent, []).append(span)
    ordered: list[tuple[ReceivedSpan, int]] = []

    def visit(span: ReceivedSpan, depth: int) -> None:
        ordered.append((span, depth))
        for child in children.get(span.span_id, []):
            visit(child, depth + 1)

    for root in children.get("", []):
        visit(root, 0)
    return ordered


def _row(span: ReceivedSpan, depth: int, start: int, width: int) -> str:
    left = 100 * (span.start_ns - start) / width
    size = 100 * span.duration_ns / width
    color = COLORS.get(span.service, "#777")
    is_far = left + size > 85
    place = f"right:{100 - left + 0.5:.2f}%" if is_far else f"left:{left + size + 0.5:.2f}%"
    events = "".join(
        f"<div class='event' style='left:{100 * (e.at_ns - start) / width:.2f}%'></div>"
        for e in span.events
    )
    error = "" if span.error is None else f"<span class='error'> {html.escape(span.error)}</span>"
    name = f"{_badge(span.service)}{html.escape(span.name)}{error}"
    return (
        f"<div class='row'><div class='name' style='padding-left:{depth * 18}px'>{name}</div>"
        f"<div class='lane'><div class='bar' style='left:{left:.2f}%;width:{size:.2f}%;"
        f"background:{color}'></div>{events}"
        f"<div class='time' style='{place}'>{span.duration_ns / 1e6:.3f} ms</div></div></div>"
        f"{_details(span, depth)}"
    )


def _details(span: ReceivedSpan, depth: int) -> str:
    parts = [f"{key}={_short(value)}" for key, value in span.attributes.items()]
    parts += [f"● {event.name} {_short(event.attributes)}" for event in span.events]
    links = [
        f"<a href='/trace/{link.trace_id}'>→ {link.span_id[:8]}</a> "
        f"{html.escape(_short(link.attributes))}"
        for link in span.links[:8]
    ]
    if len(span.links) > 8:
        links.append(f"and {len(span.links) - 8} links more")
    shown = " · ".join([*map(html.escape, parts), *links])
    return f"<div class='attrs' style='padding-left:{depth * 18}px'>{shown}</div>" if shown else ""


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False) if isinstance(value, dict | list) else str(value)
    return text if len(text) <= 160 else f"{text[:160]}…"


def _badge(service: str) -> str:
    color = COLORS.get(service, "#777")
    return f"<span class='service' style='background:{color}'>{html.escape(service)}</span>"


def _page(title: str, body: str) -> bytes:
    head = f"<meta charset='utf-8'><title>{html.escape(title)}</title><style>{STYLE}</style>"
    heading = f"<h3>{html.escape(title)}</h3>"
    return f"<!doctype html><html><head>{head}</head><body>{heading}{body}</body></html>".encode()
