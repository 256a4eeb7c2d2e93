"""/metrics of the executor: read from the parts when somebody asks, so counting costs nothing.

Knows the numbers' names and owners. Invariant: reads only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from executor_svc.service import ExecutorService
from executor_svc.step_worker import Runner, StepWorker


class ExecutorMetrics(Collector):
    def __init__(
        self, executor_id: str, runner: Runner, worker: StepWorker, service: ExecutorService
    ) -> None:
        self._executor_id = executor_id
        self._counters: list[tuple[str, str, Callable[[], float]]] = [
            ("steps", "Steps that ended well.", lambda: worker.num_steps),
            ("steps_failed", "Steps that raised.", lambda: service.num_failed_steps),
            (
                "late_results",
                "Steps whose generation ended while they ran.",
                lambda: service.num_late_results,
            ),
            (
                "positions_computed",
                "Pairs of a request and a position that were computed.",
                lambda: runner.num_positions_computed,
            ),
            (
                "positions_recomputed",
                "Those of them that had been computed before.",
                lambda: runner.num_positions_recomputed,
            ),
            (
                "idle_seconds",
                "Time without compute while a step was there or could have been.",
                lambda: worker.idle_us / 1e6,
            ),
            ("busy_seconds", "Time within steps that ended well.", lambda: worker.busy_us / 1e6),
        ]
        self._epoch_seen = lambda: service.ledger.epoch_seen

    def collect(self) -> Iterator[Metric]:
        for name, text, read in self._counters:
            counter = CounterMetricFamily(f"segue:executor_{name}", text, labels=["executor_id"])
            counter.add_metric([self._executor_id], read())
            yield counter
        epoch = GaugeMetricFamily(
            "segue:executor_epoch_seen", "The epoch that is obeyed.", labels=["executor_id"]
        )
        epoch.add_metric([self._executor_id], self._epoch_seen())
        yield epoch


def serve_metrics(metrics: ExecutorMetrics, host: str, port: int) -> Callable[[], None]:
    """Serve on a thread of its own; what is returned stops it."""
    registry = CollectorRegistry()
    registry.register(metrics)
    server, thread = start_http_server(port, addr=host, registry=registry)

    def stop() -> None:
        server.shutdown()
        server.server_close()
        thread.join()

    return stop
