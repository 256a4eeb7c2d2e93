"""Writes docs/metrics.md from the table of instruments (segue/instruments).

Knows the table and Markdown. Invariant: the same table gives the same page; a test holds the
committed one to it.

    .venv/bin/python -m scripts.write_metrics_page [TARGET]
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from segue.instruments import INSTRUMENTS, Instrument, Service
from segue.instruments.buckets import REQUEST_TOKENS

ROOT = Path(__file__).resolve().parent.parent
TARGET = ROOT / "docs" / "metrics.md"

HEAD = """\
# Metrics

Written by `make docs` from the table in `segue/instruments`; change it there. Each service
answers `GET /metrics` in Prometheus' text format: the gateway on its HTTP port, a scheduler and
an executor on their `--metrics-port`. `tests/e2e/test_metrics.py` asks a running system for
every row below. Workers of a gateway (`--workers`) share the HTTP port, on which nobody can say
whose counters he would read: there it is a 404, and each worker has a port of its own in
`--metrics-ports`, a target each, which their sums go over.

- **`vllm:` rows are vLLM 0.32's**, with its names, types, labels and buckets, so its Grafana
  boards, KEDA triggers and the Gateway API inference extension find what they look for. What is
  counted by choice here is counted by request there: a choice is a request to the engine, in
  both.
- **`engine`** is vLLM's index of an engine. Here it is the executor's id at the scheduler;
  `none` there for requests that no executor has; `all` at a gateway, which does not know who
  computes.
- **`model_name`** is the first of `--served-model-name`; a scheduler that was not told it says
  the deployment.
- **A count is of one process**: it begins at zero with it, and never falls otherwise. A count
  is exported by one service only, so a sum over all targets counts nothing twice. Three
  *gauges* are on two pages, since the inference extension and others read a single port:
  `vllm:num_requests_running`, `…_waiting` and `vllm:kv_cache_usage_perc`.
  `observability/prometheus.yml` keeps the scheduler's and drops the gateways'.
- **Phases of a request** are this leader's own times: a request that was under way when it took
  over is in `segue:requests_finished` and not in the phase histograms.
- **What a client saw** is the gateway's: a stop string ends a choice with `stop` at the
  gateway, and the request with `abort` at the scheduler, which knows no text. A choice that
  another gateway began has no first token here.
- Draft acceptance over time: `rate(vllm:spec_decode_num_accepted_tokens_total[5m]) /
  rate(vllm:spec_decode_num_draft_tokens_total[5m])`.

Not here, since there is nothing to measure: vLLM's rows of sleep states, multi-modal and
external caches, KV connectors, LoRA and block residency. Not here, since vLLM has dropped or
renamed them: `vllm:time_per_output_token_seconds` (now `vllm:inter_token_latency_seconds`),
`vllm:gpu_cache_usage_perc`.
"""

TITLES = {
    Service.GATEWAY: "## Gateway",
    Service.SCHEDULER: "## Scheduler",
    Service.EXECUTOR: "## Executor",
}
OTLP_HEAD = """
## Over OTLP

OpenTelemetry's GenAI server metrics, from each gateway, in seconds. Only where the environment
names a place for metrics: `OTEL_EXPORTER_OTLP_METRICS_ENDPOINT`, or
`OTEL_METRICS_EXPORTER=otlp` with the general endpoint. gRPC or, by
`OTEL_EXPORTER_OTLP_METRICS_PROTOCOL`, HTTP.
"""


def page(rows: Sequence[Instrument]) -> str:
    return "\n".join([HEAD, *_lines(rows)]) + "\n"


def _lines(rows: Sequence[Instrument]) -> Iterator[str]:
    for service, title in TITLES.items():
        yield title
        yield ""
        yield from _table([r for r in rows if r.service is service and not r.is_otlp])
        yield ""
    yield OTLP_HEAD.strip()
    yield ""
    yield from _table([r for r in rows if r.is_otlp])


def _table(rows: Sequence[Instrument]) -> Iterator[str]:
    yield "| name | type | labels | what it says |"
    yield "|---|---|---|---|"
    for row in rows:
        labels = ", ".join(f"`{label}`" for label in row.labels)
        text = row.text + (f" Not before: {row.when}." if row.when else "")
        if row.buckets:
            text += f" Buckets: {_bounds(row)}."
        yield f"| `{row.page_name}` | {row.kind.value} | {labels} | {text} |"


def _bounds(row: Instrument) -> str:
    first, second, *_, last = (f"{bound:g}" for bound in row.buckets)
    if row.buckets is REQUEST_TOKENS:
        last = "the longest request"
    return f"{first}, {second} … {last}"


def main(arguments: Sequence[str]) -> int:
    target = Path(arguments[0]) if arguments else TARGET
    target.write_text(page(INSTRUMENTS))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
