"""The gateway's metrics: vLLM's names for what a gateway can know, ours under `segue:`.

Knows nothing about who scrapes. Invariant: counters only grow in the life of a process, and each
choice of each call is counted once, at its end.
"""

from __future__ import annotations

import time

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from gateway_svc.choice import Choice
from gateway_svc.live_call import LiveCall

LABELS = ["model_name"]
FIRST_TOKEN_BUCKETS = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0),
)
TOKEN_BUCKETS = (
    *(0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0),
)
REQUEST_BUCKETS = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0),
    *(120.0, 240.0, 480.0, 960.0, 1920.0),
)


class GatewayMetrics:
    def __init__(self, model_name: str) -> None:
        self._registry = registry = CollectorRegistry()
        self._model_name = model_name
        self._started: dict[str, float] = {}  # request id -> when it was added, monotonic
        self._last_row: dict[str, float] = {}

        def histogram(name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
            metric = Histogram(name, text, LABELS, buckets=buckets, registry=registry)
            return metric.labels(model_name)

        def counter(name: str, text: str) -> Counter:
            return Counter(name, text, LABELS, registry=registry).labels(model_name)

        def gauge(name: str, text: str) -> Gauge:
            return Gauge(name, text, LABELS, registry=registry).labels(model_name)

        self.num_running = gauge("vllm:num_requests_running", "Choices that have begun")
        self.num_waiting = gauge("vllm:num_requests_waiting", "Choices without a token yet")
        self._first_token = histogram(
            "vllm:time_to_first_token_seconds", "Until the first token", FIRST_TOKEN_BUCKETS
        )
        self._inter_token = histogram(
            "vllm:inter_token_latency_seconds", "Between two tokens", TOKEN_BUCKETS
        )
        self._request = histogram(
            "vllm:e2e_request_latency_seconds", "Until the last token", REQUEST_BUCKETS
        )
        self._prompt_tokens = counter("vllm:prompt_tokens", "Prompt tokens of finished choices")
        self._generation_tokens = counter("vllm:generation_tokens", "Tokens received")
        self._success = Counter(
            "vllm:request_success",
            "Choices that ended, by their reason",
            [*LABELS, "finished_reason"],
            registry=registry,
        )
        self.sessions_opened = counter("segue:gateway_sessions_opened", "Sessions with a leader")
        self.row_mismatches = counter(
            "segue:gateway_row_mismatches", "Rows that contradicted what a client had (a fault)"
        )
        self.streams_resumed = counter("segue:gateway_streams_resumed", "Clients that came back")
        self.streams_diverged = counter(
            "segue:gateway_streams_diverged", "Clients that came back to another text"
        )
        self.is_connected = gauge("segue:gateway_is_connected", "1 while a leader answers")

    def call_added(self, live: LiveCall) -> None:
        now = time.monotonic()
        for choice in live.choices:
            self._started[choice.request_id] = now

    def rows_received(self, choice: Choice, num_rows: int) -> None:
        now = time.monotonic()
        started = self._started.get(choice.request_id)
        if started is None:
            return
        last = self._last_row.get(choice.request_id)
        self._last_row[choice.request_id] = now
        self._generation_tokens.inc(num_rows)
        if last is None:
            self._first_token.observe(now - started)
        else:
            self._inter_token.observe((now - last) / num_rows)

    def choice_ended(self, choice: Choice) -> None:
        assert choice.end is not None
        self._last_row.pop(choice.request_id, None)
        started = self._started.pop(choice.request_id, None)
        if started is None:
            return
        self._request.observe(time.monotonic() - started)
        self._prompt_tokens.inc(len(choice.submission.prompt_token_ids))
        self._success.labels(self._model_name, choice.end.reason.value).inc()

    def render(self) -> bytes:
        return generate_latest(self._registry)
