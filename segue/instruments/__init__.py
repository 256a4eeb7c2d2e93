"""The one table of everything that is measured: name, type, labels, buckets, what it says, where.

Each service builds its /metrics from here, docs/metrics.md is written from here, and a running
system is asked for each row. `vllm:` rows are vLLM 0.32's, with its names, types, labels and
buckets; a counter is named without the `_total` that the page adds. Knows nothing about who counts.
Invariant: a name stands for one thing; where two services say it, each row says what of it.
"""

from segue.instruments.buckets import Buckets, up_to
from segue.instruments.gateway_rows import OTLP_GATEWAY, SEGUE_GATEWAY, VLLM_GATEWAY
from segue.instruments.instrument import Instrument, Kind, Service
from segue.instruments.scheduler_rows import VLLM_SCHEDULER
from segue.instruments.segue_rows import SEGUE_EXECUTOR, SEGUE_SCHEDULER

INSTRUMENTS: tuple[Instrument, ...] = (
    *VLLM_GATEWAY,
    *SEGUE_GATEWAY,
    *OTLP_GATEWAY,
    *VLLM_SCHEDULER,
    *SEGUE_SCHEDULER,
    *SEGUE_EXECUTOR,
)

__all__ = ["INSTRUMENTS", "Buckets", "Instrument", "Kind", "Service", "up_to"]
