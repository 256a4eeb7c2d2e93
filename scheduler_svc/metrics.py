"""The scheduler's /metrics, with vLLM's names where vLLM has the number.

Knows nothing about what the numbers decide: it reads them when asked. Invariant: counters are of
this process, so a restart sets them back to zero, and nothing else ever lowers them.
"""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)

from scheduler_svc.core.request import QueueName
from scheduler_svc.loop import EngineLoop
from scheduler_svc.timed_codec import TimedCodec


class SchedulerCollector:
    """Reads the loop at each scrape; scrapes run in another thread, so only plain reads."""

    def __init__(self, loop: EngineLoop, codec: TimedCodec) -> None:
        self._loop = loop
        self._codec = codec

    def collect(self) -> Iterator[Metric]:
        state, counters = self._loop.core.state, self._loop.core.state.counters
        timings = self._loop.timings
        queues = [request.queue for request in list(state.requests.values())]
        lanes = [lane for lane in list(state.lanes.values()) if lane.policy and lane.capacity]
        usable = sum(lane.capacity.num_blocks - 1 for lane in lanes if lane.capacity)
        free = sum(lane.policy.num_free_blocks() for lane in lanes if lane.policy)
        num_waiting = len(state.unplaced) + sum(
            queue in (QueueName.WAITING, QueueName.HOLDING) for queue in queues
        )
        gauges = {
            "vllm:num_requests_running": queues.count(QueueName.RUNNING),
            "vllm:num_requests_waiting": num_waiting,
            "vllm:num_requests_swapped": queues.count(QueueName.SWAPPED),
            "vllm:kv_cache_usage_perc": 1 - free / usable if usable else 0,
            "segue:kv_blocks_free": free,
            "segue:kv_blocks_usable": usable,
            "segue:epoch": self._loop.core.leader[0],
        }
        totals = {
            "vllm:num_preemptions": counters.num_preemptions,
            "segue:steps": counters.num_steps_finished,
            "segue:stale_outputs": counters.num_stale_outputs,
            "segue:streams_resumed": counters.num_streams_resumed,
            "segue:tokens_recomputed": self._loop.core.num_tokens_recomputed(),
            "segue:adoptions": counters.num_adoptions,
            "segue:generations_ended": counters.num_generations_ended,
            "segue:commits": timings.num_commits,
            "segue:tokens_emitted": timings.num_tokens,
            "segue:schedule_seconds": timings.schedule_s - self._codec.encode_s,
            "segue:update_seconds": timings.update_s,
            "segue:commit_seconds": timings.commit_s,
            "segue:encode_seconds": self._codec.encode_s,
            "segue:emit_seconds": timings.emit_s,
        }
        yield HistogramMetricFamily(
            "segue:commit_duration_seconds",
            "from the commit's making to its known outcome",
            buckets=timings.commit_histogram(),
            sum_value=timings.commit_duration_s,
        )
        for name, value in gauges.items():
            yield GaugeMetricFamily(name, name, value=value)
        for name, value in totals.items():
            yield CounterMetricFamily(name, name, value=value)
        finished = CounterMetricFamily(
            "vllm:request_success", "requests that ended, by reason", labels=["finished_reason"]
        )
        for reason, count in list(counters.num_finished.items()):
            finished.add_metric([reason], count)
        yield finished


def serve_metrics(host: str, port: int, loop: EngineLoop, codec: TimedCodec) -> None:
    """Serve /metrics on this port; 0: not at all."""
    if port == 0:
        return
    registry = CollectorRegistry()
    registry.register(SchedulerCollector(loop, codec))
    start_http_server(port, addr=host, registry=registry)
