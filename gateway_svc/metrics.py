"""The gateway's metrics: what clients see, under vLLM's names, and ours under `segue:`.

Knows nothing about who scrapes. Invariant: counters only grow in the life of a process, each choice
is counted once, at its end, and a token costs a dictionary entry shared by all that came with it.
A choice taken over from another gateway has no first token here, and its end counts here.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from gateway_svc.call import CallShape, choice_index_of
from gateway_svc.choice import Choice
from gateway_svc.live_call import LiveCall
from segue.instruments import Service
from segue.meters import Meters, Readings
from segue.otlp_metrics import GenAiMeter
from segue.types import FinishReason

ENGINE = "all"


@dataclass(slots=True)
class _Prompt:
    """The choices drawn for one prompt of a call, until the last of them has ended."""

    shape: CallShape
    was_attached: bool
    num_choices: int = 0
    num_ended: int = 0
    most_tokens: int = 0


@dataclass(slots=True)
class Standing:
    """What is looked up rather than counted; the gateway sets it when it is asked for its page."""

    num_running: int = 0
    num_waiting: int = 0
    is_connected: bool = False
    kv_cache_usage: float | None = None  # None: no leader says so


class GatewayMetrics:
    def __init__(
        self, model_name: str, max_model_len: int = 1 << 20, gen_ai: GenAiMeter | None = None
    ) -> None:
        labels = {"model_name": model_name, "engine": ENGINE}
        self.standing = Standing()
        self._meters = meters = Meters(
            Service.GATEWAY, labels, max_tokens=max_model_len, read=self._read
        )
        self._gen_ai = gen_ai
        self._prompts: dict[tuple[str, int], _Prompt] = {}
        self._now = 0.0
        self._gaps: dict[float, int] = {}  # when a choice had its last rows -> how many of them

        self._first_token = meters.distribution("vllm:time_to_first_token_seconds")
        self._inter_token = meters.distribution("vllm:inter_token_latency_seconds")
        self._per_token = meters.distribution("vllm:request_time_per_output_token_seconds")
        self._request = meters.distribution("vllm:e2e_request_latency_seconds")
        self._prompt_tokens = meters.distribution("vllm:request_prompt_tokens")
        self._generation_tokens = meters.distribution("vllm:request_generation_tokens")
        self._most_tokens = meters.distribution("vllm:request_max_num_generation_tokens")
        self._params_n = meters.distribution("vllm:request_params_n")
        self._max_tokens = meters.distribution("vllm:request_params_max_tokens")
        self._ended = {
            reason: meters.tally("vllm:request_success", finished_reason=reason.value)
            for reason in FinishReason
        }
        self.sessions_opened = meters.tally("segue:gateway_sessions_opened")
        self.row_mismatches = meters.tally("segue:gateway_row_mismatches")
        self.streams_resumed = meters.tally("segue:gateway_streams_resumed")
        self.streams_diverged = meters.tally("segue:gateway_streams_diverged")
        self._duplicates = meters.tally("segue:gateway_suppressed_duplicates")

    def call_added(self, live: LiveCall) -> None:
        now, unix_ms = time.monotonic(), time.time_ns() // 1_000_000
        for choice in live.choices:
            if choice.end is not None:  # it ended while the call was being fetched
                continue
            waited_ms = max(0, unix_ms - choice.submission.arrival_unix_ms)
            choice.arrived_at = now - waited_ms / 1000
            new = _Prompt(live.call.shape, choice.was_attached)
            prompt = self._prompts.setdefault(_prompt_key(choice), new)
            prompt.num_choices += 1

    def batch_began(self) -> None:
        self._now = time.monotonic()
        self._gaps.clear()  # of a batch that was broken off

    def rows_received(self, choice: Choice, num_rows: int, num_repeated: int) -> None:
        """`num_repeated` of the rows that came were there already."""
        if num_repeated:
            self._duplicates.add(num_repeated)
        if not num_rows:
            return
        last = choice.last_row_at
        choice.last_row_at = self._now
        if last:
            self._gaps[last] = self._gaps.get(last, 0) + 1
        elif not choice.was_attached:
            self._note_first(choice)

    def batch_ended(self) -> None:
        for last, count in self._gaps.items():
            self._inter_token.observe(self._now - last, count)
        self._gaps.clear()

    def choice_ended(self, choice: Choice) -> None:
        assert choice.end is not None
        prompt = self._leave(choice, is_end=True)
        reason, num_tokens = choice.end.reason, len(choice.token_ids)
        self._ended[reason].add()
        if prompt is None:  # it was being fetched, and nobody waited any more
            return
        duration = time.monotonic() - choice.arrived_at
        per_token = 0.0
        if num_tokens > 1:
            per_token = (choice.last_row_at - choice.first_row_at) / (num_tokens - 1)
        self._request.observe(duration)
        self._prompt_tokens.observe(len(choice.submission.prompt_token_ids))
        self._generation_tokens.observe(num_tokens)
        self._max_tokens.observe(choice.submission.sampling_params.max_tokens)
        if choice.first_row_at:
            self._per_token.observe(per_token)
        if self._gen_ai is not None:
            kind, model = prompt.shape.kind.value, prompt.shape.model
            error = "" if reason in (FinishReason.STOP, FinishReason.LENGTH) else reason.value
            self._gen_ai.ended(kind, model, duration, per_token, error)

    def choice_lost(self, choice: Choice) -> None:
        """It was refused, or another gateway has it: no end of ours."""
        self._leave(choice, is_end=False)

    def render(self) -> bytes:
        return self._meters.page()

    def close(self) -> None:
        if self._gen_ai is not None:
            self._gen_ai.close()

    def _note_first(self, choice: Choice) -> None:
        choice.first_row_at = self._now
        seconds = self._now - choice.arrived_at
        self._first_token.observe(seconds)
        if self._gen_ai is not None:
            prompt = self._prompts.get(_prompt_key(choice))
            if prompt is not None:
                self._gen_ai.first_token(prompt.shape.kind.value, prompt.shape.model, seconds)

    def _leave(self, choice: Choice, *, is_end: bool) -> _Prompt | None:
        key = _prompt_key(choice)
        prompt = self._prompts.get(key)
        if prompt is None:
            return None
        prompt.num_ended += 1
        prompt.most_tokens = max(prompt.most_tokens, len(choice.token_ids))
        if prompt.num_ended == prompt.num_choices:
            del self._prompts[key]
            if is_end and not prompt.was_attached:
                self._params_n.observe(prompt.num_choices)
                self._most_tokens.observe(prompt.most_tokens)
        return prompt

    def _read(self, page: Readings) -> None:
        standing = self.standing
        page.set("vllm:num_requests_running", standing.num_running)
        page.set("vllm:num_requests_waiting", standing.num_waiting)
        page.set("segue:gateway_is_connected", standing.is_connected)
        if standing.kv_cache_usage is not None:
            page.set("vllm:kv_cache_usage_perc", standing.kv_cache_usage)


def _prompt_key(choice: Choice) -> tuple[str, int]:
    """Of the call, and of the prompt's first choice in it."""
    submission = choice.submission
    return submission.group_id, choice_index_of(choice.request_id) - submission.choice
