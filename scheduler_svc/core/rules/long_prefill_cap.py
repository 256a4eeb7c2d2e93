"""How many tokens one request may get in a step while others want to run (specification 4).

Knows nothing about prefill or decode. Invariant: a lone request is never capped.
"""

from __future__ import annotations

from scheduler_svc.core.scheduler_config import SchedulerConfig


def long_prefill_cap(config: SchedulerConfig, num_requests: int) -> int:
    """The cap for a step that starts with this many running and waiting requests; 0: none."""
    threshold = config.long_prefill_token_threshold
    if threshold == 0 or num_requests <= 1:
        return 0
    if config.long_prefill_token_threshold_adaptive:
        return max(threshold, config.max_num_batched_tokens // num_requests)
    return threshold
