"""The values that cross a border between services, as plain Python.

Knows nothing about protobuf, gRPC, Redis or tensors (see `segue/wire.py` for the bytes).
Invariant: standard library only, and nothing in here is changed after it was made, so a value may
be kept, compared, sent and sent again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum


class FinishReason(Enum):
    """Why a request ended, as a client sees it."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    ERROR = "error"


@dataclass(slots=True, frozen=True)
class SamplingParams:
    """How tokens are drawn and when a request ends; complete: the gateway fills every default.

    Token i of a choice is drawn with the uniform number of (seed, choice, i), so `seed` is always
    set. `eos_token_id` None means that EOS does not end the request (`ignore_eos`).
    `num_logprobs` None: no logprobs; 0: of the sampled token only; k: of the k best as well.
    """

    seed: int
    max_tokens: int
    min_tokens: int = 0
    temperature: float = 1.0
    top_k: int = 0  # 0: off
    top_p: float = 1.0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    eos_token_id: int | None = None
    stop_token_ids: tuple[int, ...] = ()
    num_logprobs: int | None = None


@dataclass(slots=True, frozen=True)
class TokenLogprobs:
    """Logprobs of one sampled token: its own, and the best alternatives, best first."""

    logprob: float
    top_token_ids: tuple[int, ...] = ()
    top_logprobs: tuple[float, ...] = ()


@dataclass(slots=True, frozen=True)
class Submission:
    """A complete request: a value that may be submitted again and means the same (rule 5)."""

    request_id: str
    prompt_token_ids: tuple[int, ...]
    sampling_params: SamplingParams
    arrival_unix_ms: int
    choice: int = 0  # index among the n choices of one call
    group_id: str = ""
    group_size: int = 1
    priority: int = 0  # smaller is more important
    cache_salt: str = ""
    adapter: str = ""
    traceparent: str = ""
    client_context: str = ""  # the gateway's own notes on the call, handed to one that attaches
    skip_reading_prefix_cache: bool = False  # it still fills the cache
    is_resumable: bool = False  # its client may come back through another gateway


@dataclass(slots=True, frozen=True)
class Generation:
    """One life of what is claimed about an executor's memory; made by a commit, not used twice."""

    epoch: int
    number: int


@dataclass(slots=True, frozen=True)
class StepKey:
    """Identity of a planned step. `epoch` is the one that planned it, not the one that sends it."""

    step_id: int
    epoch: int


@dataclass(slots=True, frozen=True)
class Capacity:
    """What an executor can hold. `num_blocks` includes block 0, the unified policy's null block."""

    num_blocks: int
    block_size: int
    num_cpu_blocks: int = 0
    max_model_len: int = 0  # 0: no limit of its own
    vocab_size: int = 0  # 0: unknown


@dataclass(slots=True, frozen=True)
class NewRequestData:
    """A request that the executor does not hold yet (new or resumed), sent whole."""

    request_id: str
    token_ids: tuple[int, ...]  # prompt, then all output known so far
    num_prompt_tokens: int
    num_computed_tokens: int
    block_ids: tuple[int, ...]  # whole block table after this step's allocation
    sampling_params: SamplingParams
    choice: int = 0
    adapter: str = ""


@dataclass(slots=True, frozen=True)
class CachedRequestData:
    """Requests that the executor holds: only what changed, as parallel columns in decided order."""

    request_ids: list[str] = field(default_factory=list[str])
    new_block_ids: list[tuple[int, ...]] = field(
        default_factory=list[tuple[int, ...]]
    )  # appended in this step
    num_computed_tokens: list[int] = field(default_factory=list[int])  # before this step


@dataclass(slots=True, frozen=True)
class StepStats:
    """Numbers about a step for logs and traces; they decide nothing."""

    num_running: int = 0
    num_waiting: int = 0
    num_swapped: int = 0
    num_free_blocks: int = 0
    num_cached_blocks: int = 0
    token_budget_left: int = 0


@dataclass(slots=True, frozen=True)
class SchedulerOutput:
    """One step's plan for one executor. Its encoded bytes are stored and sent, and never change.

    `num_scheduled_tokens` is in decided order: running requests first, then admissions.
    A request samples in this step exactly if it stands in `output_indices`, which gives the index
    of its first sampled token among its outputs, fixed when the step is planned (rule 5).
    `draft_token_ids` hold the drafts to verify, -1 where only the executor knows them.
    """

    step_id: int
    epoch: int
    generation: Generation
    scheduled_new_reqs: list[NewRequestData] = field(default_factory=list[NewRequestData])
    scheduled_resumed_reqs: list[NewRequestData] = field(default_factory=list[NewRequestData])
    scheduled_cached_reqs: CachedRequestData = field(default_factory=CachedRequestData)
    num_scheduled_tokens: dict[str, int] = field(default_factory=dict[str, int])
    output_indices: dict[str, int] = field(default_factory=dict[str, int])
    draft_token_ids: dict[str, list[int]] = field(default_factory=dict[str, list[int]])
    preempted_req_ids: list[str] = field(default_factory=list[str])
    finished_req_ids: list[str] = field(default_factory=list[str])
    swap_out: list[tuple[int, int]] = field(
        default_factory=list[tuple[int, int]]
    )  # (gpu block, cpu block)
    swap_in: list[tuple[int, int]] = field(
        default_factory=list[tuple[int, int]]
    )  # (cpu block, gpu block)
    copies: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])  # (source, target)
    num_lookahead_slots: int = 0
    traceparent: str = ""
    stats: StepStats = field(default_factory=StepStats)

    @property
    def key(self) -> StepKey:
        return StepKey(self.step_id, self.epoch)

    @property
    def total_num_scheduled_tokens(self) -> int:
        return sum(self.num_scheduled_tokens.values())


@dataclass(slots=True, frozen=True)
class StepTimings:
    """By the executor's own clock, in microseconds. `idle`: the gap before this step's compute."""

    idle_us: int = 0
    prepare_us: int = 0
    forward_us: int = 0
    sample_us: int = 0


@dataclass(slots=True, frozen=True)
class ModelRunnerOutput:
    """One step's result. Only requests that sampled (or failed) have a row.

    `sampled_token_ids[i][j]` is the output token of index `first_output_indices[i] + j` of
    `request_ids[i]`. `row_errors` names requests whose own row failed in a step that succeeded.
    `num_verified_drafts[i]`: of the drafts that the plan had room for, those that were made. Empty
    where the plan has none, or the executor does not say.
    """

    step_id: int
    generation: Generation
    request_ids: list[str] = field(default_factory=list[str])
    first_output_indices: list[int] = field(default_factory=list[int])
    sampled_token_ids: list[list[int]] = field(default_factory=list[list[int]])
    logprobs: dict[str, list[TokenLogprobs]] = field(default_factory=dict[str, list[TokenLogprobs]])
    draft_token_ids: dict[str, list[int]] = field(default_factory=dict[str, list[int]])
    row_errors: dict[str, str] = field(default_factory=dict[str, str])
    timings: StepTimings = field(default_factory=StepTimings)
    num_verified_drafts: list[int] = field(default_factory=list[int])

    def rows_of(self, request_ids: Collection[str]) -> Sequence[int | None]:
        """The row of each of these, in their order; None for those that have none."""
        if self.request_ids == list(request_ids):
            return range(len(request_ids))
        rows = dict(zip(self.request_ids, range(len(self.request_ids)), strict=True))
        return [rows.get(request_id) for request_id in request_ids]


@dataclass(slots=True, frozen=True)
class Usage:
    """Token counts of a finished request. `num_cached_tokens`: hit of the first admission."""

    num_prompt_tokens: int
    num_output_tokens: int
    num_cached_tokens: int = 0


@dataclass(slots=True, frozen=True)
class Finish:
    """The end of a request. `stop_reason` is the stop token id, where one ended it."""

    reason: FinishReason
    usage: Usage
    stop_reason: int | None = None
    message: str = ""  # why, in the caller's terms, where reason is ERROR or ABORT


@dataclass(slots=True, frozen=True)
class RequestOutput:
    """New rows of one request: tokens `first_index`, `first_index` + 1, … and its end, if any."""

    request_id: str
    first_index: int
    new_token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...] = ()  # empty, or one for each token
    finish: Finish | None = None
    num_cached_tokens: int = 0


@dataclass(slots=True, frozen=True)
class OutputColumns:
    """Outputs of several requests, one row each: how they are made, sent and taken.

    `token_ids` is flat, `num_tokens` of it a row. What few rows have is by row. Going over it gives
    RequestOutputs, which costs more than all the rest of a row.
    """

    request_ids: list[str] = field(default_factory=list[str])
    first_indices: list[int] = field(default_factory=list[int])
    num_tokens: list[int] = field(default_factory=list[int])
    token_ids: list[int] = field(default_factory=list[int])
    num_cached_tokens: list[int] = field(default_factory=list[int])
    logprobs: dict[int, tuple[TokenLogprobs, ...]] = field(
        default_factory=dict[int, tuple[TokenLogprobs, ...]]
    )
    finishes: dict[int, Finish] = field(default_factory=dict[int, Finish])

    @classmethod
    def of(cls, outputs: Iterable[RequestOutput]) -> OutputColumns:
        columns = cls()
        for row, output in enumerate(outputs):
            columns.request_ids.append(output.request_id)
            columns.first_indices.append(output.first_index)
            columns.num_tokens.append(len(output.new_token_ids))
            columns.token_ids.extend(output.new_token_ids)
            columns.num_cached_tokens.append(output.num_cached_tokens)
            if output.logprobs:
                columns.logprobs[row] = output.logprobs
            if output.finish is not None:
                columns.finishes[row] = output.finish
        return columns

    def __iter__(self) -> Iterator[RequestOutput]:
        start = 0
        for row, num_tokens in enumerate(self.num_tokens):
            yield self.output(row, start)
            start += num_tokens

    def output(self, row: int, start: int) -> RequestOutput:
        """The row, whose tokens begin at `start` of the flat ones."""
        return RequestOutput(
            self.request_ids[row],
            self.first_indices[row],
            tuple(self.token_ids[start : start + self.num_tokens[row]]),
            self.logprobs.get(row, ()),
            self.finishes.get(row),
            self.num_cached_tokens[row],
        )


@dataclass(slots=True, frozen=True)
class Attachment:
    """A request that a gateway wants to go on with, and the rows that it has received of it.

    `is_finished`: it was told its end too, and wants nothing but that it stays ended.
    """

    request_id: str
    delivered_token_ids: tuple[int, ...] = ()
    delivered_logprobs: tuple[TokenLogprobs, ...] = ()
    is_finished: bool = False
