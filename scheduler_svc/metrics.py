"""The scheduler's /metrics, with vLLM's names where vLLM has the number. A standby has one too.

Knows nothing about what the numbers decide: it reads them when asked, in a thread of its own, so
only by plain reads. Invariant: counters are of this process, so a restart sets them back to zero,
and nothing else ever lowers them.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from scheduler_svc.config import SchedulerServiceConfig
from scheduler_svc.core.lane import Lane
from scheduler_svc.core.request import QueueName, Request
from scheduler_svc.executor_client import Executors
from scheduler_svc.loop import EngineLoop
from scheduler_svc.step_meters import NO_ENGINE
from scheduler_svc.timed_codec import TimedCodec
from segue.instruments import Service
from segue.meters import Meters, Readings
from segue.metrics_server import serve_page

WAITING = (QueueName.WAITING, QueueName.HOLDING)
COUNTED = (
    *("num_streams_resumed", "num_stale_outputs", "num_adoptions", "num_generations_ended"),
    "num_duplicate_submissions",
)


class SchedulerPage(Collector):
    """`loop` gives the loop of this process, once it leads."""

    def __init__(
        self, config: SchedulerServiceConfig, loop: Callable[[], EngineLoop | None]
    ) -> None:
        self._standby = Meters(
            Service.SCHEDULER, {"model_name": config.model_name}, read=self._read_standby
        )
        self._loop = loop

    def collect(self) -> Iterator[Metric]:
        loop = self._loop()
        return (self._standby if loop is None else loop.meters).collect()

    def _read_standby(self, page: Readings) -> None:
        page.set("segue:is_leader", 0)
        page.set("segue:epoch", 0)


class LeaderReadings:
    """What is looked up at a scrape."""

    def __init__(self, loop: EngineLoop, executors: Executors, codec: TimedCodec) -> None:
        self._loop = loop
        self._executors = executors
        self._codec = codec

    def read(self, page: Readings) -> None:
        requests = list(self._loop.core.state.requests.values())
        page.set("segue:is_leader", 1)
        page.set("segue:epoch", self._loop.core.leader[0])
        page.set("segue:is_store_down", self._loop.is_store_down)
        self._read_queues(page, requests)
        for lane in list(self._loop.core.state.lanes.values()):
            _read_lane(page, lane)
        self._read_totals(page)

    def _read_queues(self, page: Readings, requests: list[Request]) -> None:
        state = self._loop.core.state
        queued = Counter((r.lane_id, r.queue) for r in requests if r.queue is not None)
        waiting = [r for r in requests if r.queue in WAITING]
        unplaced = list(state.unplaced)
        deferred = Counter(r.lane_id for r in waiting if r.is_deferred)
        for engine in list(state.lanes):
            num_waiting = sum(queued[engine, queue] for queue in WAITING)
            page.set("vllm:num_requests_running", queued[engine, QueueName.RUNNING], engine=engine)
            page.set("vllm:num_requests_swapped", queued[engine, QueueName.SWAPPED], engine=engine)
            _set_waiting(page, engine, num_waiting, deferred[engine])
        _set_waiting(page, NO_ENGINE, len(unplaced), 0)
        arrivals = [r.submission.arrival_unix_ms for r in (*waiting, *unplaced)]
        now_ms = time.time_ns() // 1_000_000
        oldest_s = max(0, now_ms - min(arrivals, default=now_ms)) / 1000
        page.set("segue:oldest_waiting_age_seconds", oldest_s)

    def _read_totals(self, page: Readings) -> None:
        core, timings, executors = self._loop.core, self._loop.timings, self._executors
        counters, encode_s = core.state.counters, self._codec.encode_s
        for name in COUNTED:
            page.set(f"segue:{name.removeprefix('num_')}", getattr(counters, name))
        page.set("segue:steps", counters.num_steps_finished)
        page.set("segue:tokens_recomputed", core.num_tokens_recomputed())
        page.set("segue:commits", timings.num_commits)
        page.set("segue:tokens_emitted", timings.num_tokens)
        page.set("segue:update_seconds", timings.update_s)
        page.set("segue:schedule_seconds", max(0.0, timings.schedule_s - encode_s))
        page.set("segue:encode_seconds", encode_s)
        page.set("segue:commit_seconds", timings.commit_s)
        page.set("segue:emit_seconds", timings.emit_s)
        page.set("segue:wire_bytes", executors.num_step_bytes, message="step")
        page.set("segue:wire_bytes", executors.num_result_bytes, message="result")
        page.set("segue:wire_bytes", timings.num_output_bytes, message="output")


def _set_waiting(page: Readings, engine: str, num_waiting: int, num_deferred: int) -> None:
    page.set("vllm:num_requests_waiting", num_waiting, engine=engine)
    name = "vllm:num_requests_waiting_by_reason"
    page.set(name, num_waiting - num_deferred, engine=engine, reason="capacity")
    page.set(name, num_deferred, engine=engine, reason="deferred")


def _read_lane(page: Readings, lane: Lane) -> None:
    if lane.policy is None or lane.capacity is None:
        return
    engine, capacity = lane.executor_id, lane.capacity
    num_usable, num_free = lane.policy.num_usable_blocks(), lane.policy.num_free_blocks()
    page.set("segue:steps_in_flight", len(lane.planned), engine=engine)
    page.set("segue:kv_blocks_usable", num_usable, engine=engine)
    page.set("segue:kv_blocks_free", num_free, engine=engine)
    usage = 1 - num_free / num_usable if num_usable else 0
    page.set("vllm:kv_cache_usage_perc", usage, engine=engine)
    page.set(
        "vllm:cache_config_info",
        1,
        engine=engine,
        block_size=str(capacity.block_size),
        num_gpu_blocks=str(capacity.num_blocks),
        num_cpu_blocks=str(capacity.num_cpu_blocks),
        enable_prefix_caching=str(lane.policy.config.enable_prefix_caching),
    )


def serve_metrics(config: SchedulerServiceConfig, loop: Callable[[], EngineLoop | None]) -> None:
    """On its own port of the address that gRPC is served on; port 0: not at all."""
    if config.metrics_port == 0:
        return
    host = config.listen.rpartition(":")[0].strip("[]")
    serve_page(SchedulerPage(config, loop), host or "0.0.0.0", config.metrics_port)
