"""/metrics of the executor: read from the parts when somebody asks, so counting costs nothing.

Knows the numbers' names and owners. Invariant: decides nothing; what a step adds is added once, by
the thread that ran it.
"""

from __future__ import annotations

from collections.abc import Callable

from executor_svc.service import ExecutorService
from executor_svc.step_worker import Runner, StepWorker
from segue.instruments import Service
from segue.meters import Meters, Readings
from segue.metrics_server import serve_page
from segue.types import StepTimings


class ExecutorMetrics:
    def __init__(
        self, executor_id: str, runner: Runner, worker: StepWorker, service: ExecutorService
    ) -> None:
        self._runner, self._worker, self._service = runner, worker, service
        self.meters = Meters(Service.EXECUTOR, {"executor_id": executor_id}, read=self._read)
        self._duration = self.meters.distribution("segue:executor_step_duration_seconds")
        self._prepare, self._forward, self._sample = (
            self.meters.tally("segue:executor_phase_seconds", phase=phase)
            for phase in ("prepare", "forward", "sample")
        )
        worker.on_step = self._note_step

    def _note_step(self, busy_us: int, timings: StepTimings) -> None:
        self._duration.observe(busy_us / 1e6)
        self._prepare.add(timings.prepare_us / 1e6)
        self._forward.add(timings.forward_us / 1e6)
        self._sample.add(timings.sample_us / 1e6)

    def _read(self, page: Readings) -> None:
        runner, worker, service = self._runner, self._worker, self._service
        page.set("segue:executor_epoch_seen", service.ledger.epoch_seen)
        page.set("segue:executor_steps", worker.num_steps)
        page.set("segue:executor_steps_failed", service.num_failed_steps)
        page.set("segue:executor_late_results", service.num_late_results)
        page.set("segue:executor_duplicate_steps", service.num_duplicate_steps)
        page.set("segue:executor_positions_computed", runner.num_positions_computed)
        page.set("segue:executor_positions_recomputed", runner.num_positions_recomputed)
        page.set("segue:executor_draft_tokens", runner.num_draft_tokens)
        page.set("segue:executor_draft_tokens_accepted", runner.num_accepted_draft_tokens)
        page.set("segue:executor_idle_seconds", worker.idle_us / 1e6)
        page.set("segue:executor_busy_seconds", worker.busy_us / 1e6)


def serve_metrics(metrics: ExecutorMetrics, host: str, port: int) -> Callable[[], None]:
    """Serve on a thread of its own; what is returned stops it."""
    return serve_page(metrics.meters, host, port)
