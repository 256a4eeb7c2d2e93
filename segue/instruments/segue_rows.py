"""What no other engine has to measure: steps, commits, takeovers, and who computes twice.

Knows nothing about how it is measured. Invariant: of the scheduler's, only the leader's count.
"""

from __future__ import annotations

from segue.instruments.buckets import COMMIT_S, DRAFT_TOKENS, EXECUTOR_STEP_S, PHASE_S
from segue.instruments.instrument import (
    ENGINE,
    EXECUTOR,
    MODEL,
    Instrument,
    Service,
    counter,
    gauge,
    histogram,
)

SCHEDULER = Service.SCHEDULER


def _total(name: str, text: str, labels: tuple[str, ...] = MODEL) -> Instrument:
    return counter(SCHEDULER, f"segue:{name}", text, labels)


def _of_executor(name: str, text: str, *labels: str) -> Instrument:
    return counter(Service.EXECUTOR, f"segue:executor_{name}", text, (*EXECUTOR, *labels))


SEGUE_SCHEDULER = (
    gauge(SCHEDULER, "segue:is_leader", "1 on the scheduler that leads, 0 on a standby.", MODEL),
    gauge(SCHEDULER, "segue:epoch", "The leader's epoch; 0 on a standby.", MODEL),
    gauge(SCHEDULER, "segue:is_store_down", "1 while Redis does not answer.", MODEL),
    gauge(
        SCHEDULER,
        "segue:oldest_waiting_age_seconds",
        "Since the arrival of the oldest request that waits; 0 where none does.",
        MODEL,
    ),
    gauge(
        SCHEDULER,
        "segue:kv_blocks_free",
        "Blocks that nobody has.",
        ENGINE,
        "once an executor has connected",
    ),
    gauge(
        SCHEDULER,
        "segue:kv_blocks_usable",
        "Blocks that there are.",
        ENGINE,
        "once an executor has connected",
    ),
    gauge(
        SCHEDULER,
        "segue:steps_in_flight",
        "Steps whose result has not been taken.",
        ENGINE,
        "once an executor has connected",
    ),
    _total("steps", "Steps whose result was taken."),
    _total("commits", "Commits that are done."),
    _total("tokens_emitted", "Tokens sent to gateways."),
    histogram(
        SCHEDULER,
        "segue:commit_duration_seconds",
        "From the commit's making to its known outcome.",
        MODEL,
        COMMIT_S,
    ),
    histogram(
        SCHEDULER,
        "segue:step_phase_seconds",
        "CPU of one turn of the loop that made or took a step: update, schedule, commit or emit.",
        (*MODEL, "phase"),
        PHASE_S,
    ),
    _total("update_seconds", "CPU of taking events and results."),
    _total("schedule_seconds", "CPU of planning, without encoding."),
    _total("encode_seconds", "CPU of encoding steps."),
    _total("commit_seconds", "CPU of the loop's thread while a commit is under way."),
    _total("emit_seconds", "CPU of telling executors and gateways."),
    _total(
        "wire_bytes",
        "Bytes of messages: step (to executors), result (from them), output (to gateways).",
        (*MODEL, "message"),
    ),
    _total("streams_resumed", "Requests under way that a gateway went on with."),
    _total("stale_outputs", "Results that came for a step which nobody waits for."),
    _total("adoptions", "Outputs set to what a client had seen, since Redis had lost some."),
    _total("generations_ended", "Lives of an executor's memory that ended."),
    _total("duplicate_submissions", "Requests that were submitted again and are known."),
    _total("requests_rejected", "Requests refused, by code.", (*MODEL, "code")),
    _total("requests_finished", "Requests that ended, by reason.", (*MODEL, "finished_reason")),
    _total("tokens_recomputed", "Tokens computed, then given back by preemption.", MODEL),
    _total(
        "swapped_blocks",
        "KV blocks moved to CPU memory (out) and back (in).",
        (*ENGINE, "direction"),
    ),
    histogram(
        SCHEDULER,
        "segue:draft_accepted_tokens",
        "Tokens accepted of one draft.",
        ENGINE,
        DRAFT_TOKENS,
    ),
)

SEGUE_EXECUTOR = (
    gauge(Service.EXECUTOR, "segue:executor_epoch_seen", "The epoch that is obeyed.", EXECUTOR),
    _of_executor("steps", "Steps that ended well."),
    _of_executor("steps_failed", "Steps that raised."),
    _of_executor("late_results", "Steps whose generation ended while they ran."),
    _of_executor("duplicate_steps", "Steps that came again and were not run again."),
    _of_executor("positions_computed", "Pairs of a request and a position that were computed."),
    _of_executor("positions_recomputed", "Those of them that had been computed before."),
    _of_executor("draft_tokens", "Drafts that were made and verified."),
    _of_executor("draft_tokens_accepted", "Those of them that the model drew itself."),
    _of_executor("idle_seconds", "Time without compute while a step was there or could have been."),
    _of_executor("busy_seconds", "Time within steps that ended well."),
    _of_executor("phase_seconds", "Of that: prepare, forward or sample.", "phase"),
    histogram(
        Service.EXECUTOR,
        "segue:executor_step_duration_seconds",
        "From the start of a step to its result.",
        EXECUTOR,
        EXECUTOR_STEP_S,
    ),
)
