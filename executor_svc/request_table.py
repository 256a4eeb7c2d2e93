"""The executor's requests: the fold of the plans it has run, and of the tokens it has sampled.

Knows nothing about tensors of the model. It believes nothing: what a plan says about a request is
compared with what the table holds, and a difference is an error (the step fails, the generation
ends). Invariant: after step k the table is the fold of plans <= k; a held request has a token for
each position that may be scheduled next, since its own samples are appended here.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from segue.types import NewRequestData, SamplingParams, SchedulerOutput

Int32Array = npt.NDArray[np.int32]


class PlanError(ValueError):
    """The plan contradicts what this executor holds, or asks for what cannot be."""


@dataclass(slots=True)
class RequestInfo:
    """What does not change while a request is held, and why its row cannot be computed."""

    request_id: str
    sampling_params: SamplingParams
    choice: int
    error: str = ""


class RequestTable:
    """Columns by row; a row is given to a request while it is held, then to another one."""

    def __init__(self, num_blocks: int, block_size: int, vocab_size: int) -> None:
        self._num_blocks = num_blocks
        self._block_size = block_size
        self._vocab_size = vocab_size
        self._free_rows: list[int] = []
        self.row_of: dict[str, int] = {}
        self.infos: list[RequestInfo | None] = []
        self.token_ids: Int32Array = np.zeros((0, 64), dtype=np.int32)
        self.block_tables: Int32Array = np.zeros((0, 8), dtype=np.int32)
        self.num_tokens: Int32Array = np.zeros(0, dtype=np.int32)
        self.num_prompt_tokens: Int32Array = np.zeros(0, dtype=np.int32)
        self.num_computed_tokens: Int32Array = np.zeros(0, dtype=np.int32)
        self.num_blocks_of: Int32Array = np.zeros(0, dtype=np.int32)
        # Drafts rejected in a row's last step: a plan made before that was known counts them.
        self.num_rejected: Int32Array = np.zeros(0, dtype=np.int32)
        self.num_overcounted: Int32Array = np.zeros(0, dtype=np.int32)  # by the plan that runs

    def apply(self, plan: SchedulerOutput) -> None:
        """Folds one plan in, removals first: a request may be preempted and resumed at once."""
        for request_id in plan.preempted_req_ids:
            self._drop(request_id)
        for request_id in plan.finished_req_ids:
            self._drop(request_id)
        for new in plan.scheduled_new_reqs:
            self._add(new)
        for resumed in plan.scheduled_resumed_reqs:
            self._add(resumed)
        cached = plan.scheduled_cached_reqs
        for request_id, block_ids, num_computed in zip(
            cached.request_ids, cached.new_block_ids, cached.num_computed_tokens, strict=True
        ):
            self._check_cached(request_id, num_computed)
            if block_ids:
                self._append_blocks(self.row_of[request_id], block_ids)

    def advance(self, rows: Int32Array, num_scheduled: Int32Array) -> None:
        """The scheduled positions of these rows are computed now."""
        self.num_computed_tokens[rows] += num_scheduled

    def append_samples(self, rows: Int32Array, sampled: Int32Array) -> None:
        """One sampled token for each row: the input of its next step."""
        if len(rows) == 0:
            return
        at = self.num_tokens[rows]
        self._widen_tokens(int(at.max()) + 1)
        self.token_ids[rows, at] = sampled
        self.num_tokens[rows] += 1

    def write_drafts(self, row: int, token_ids: list[int]) -> None:
        """Behind the row's tokens, where the model reads them in this step; they do not count."""
        if min(token_ids) < 0 or max(token_ids) >= self._vocab_size:
            raise PlanError(
                f"request {self.info(row).request_id}: a draft is outside the vocabulary"
            )
        start = int(self.num_tokens[row])
        self._widen_tokens(start + len(token_ids) + 1)
        self.token_ids[row, start : start + len(token_ids)] = token_ids

    def settle_drafts(
        self, rows: Int32Array, num_accepted: Int32Array, num_rejected: Int32Array
    ) -> None:
        """Accepted drafts are tokens now, and computed; the sampled one comes behind them."""
        self.num_tokens[rows] += num_accepted
        self.num_computed_tokens[rows] += num_accepted
        self.num_rejected[rows] = num_rejected

    def info(self, row: int) -> RequestInfo:
        info = self.infos[row]
        assert info is not None, f"row {row} is free"
        return info

    def block_ids(self, row: int) -> list[int]:
        return self.block_tables[row, : self.num_blocks_of[row]].tolist()

    def _drop(self, request_id: str) -> None:
        """A request that is not held (never scheduled, or dropped before) has nothing to drop."""
        row = self.row_of.pop(request_id, None)
        if row is not None:
            self.infos[row] = None
            self.block_tables[row] = 0
            self._free_rows.append(row)

    def _add(self, new: NewRequestData) -> None:
        if new.request_id in self.row_of:
            raise PlanError(f"request {new.request_id} is new in the plan, but held here already")
        num_tokens = len(new.token_ids)
        if not 0 < new.num_prompt_tokens <= num_tokens:
            raise PlanError(
                f"request {new.request_id}: {new.num_prompt_tokens} prompt tokens of {num_tokens}"
            )
        if not 0 <= new.num_computed_tokens < num_tokens:
            raise PlanError(
                f"request {new.request_id}: {new.num_computed_tokens} of {num_tokens} tokens "
                "computed leaves nothing to compute"
            )
        row = self._take_row()
        self._widen_tokens(num_tokens + 1)
        token_ids = np.asarray(new.token_ids, dtype=np.int64)
        info = RequestInfo(new.request_id, new.sampling_params, new.choice)
        if token_ids.min() < 0 or token_ids.max() >= self._vocab_size:
            # Its own fault alone: others in the step must not suffer.
            info.error = f"a token id is outside the vocabulary of {self._vocab_size}"
            token_ids = token_ids.clip(0, self._vocab_size - 1)
        self.infos[row] = info
        self.token_ids[row, :num_tokens] = token_ids
        self.num_tokens[row] = num_tokens
        self.num_prompt_tokens[row] = new.num_prompt_tokens
        self.num_computed_tokens[row] = new.num_computed_tokens
        self.num_blocks_of[row] = 0
        self.num_rejected[row] = self.num_overcounted[row] = 0
        self.row_of[new.request_id] = row
        self._append_blocks(row, new.block_ids)

    def _check_cached(self, request_id: str, num_computed: int) -> None:
        row = self.row_of.get(request_id)
        if row is None:
            raise PlanError(f"request {request_id} is not held here")
        held = int(self.num_computed_tokens[row])
        overcounted = num_computed - held
        self.num_overcounted[row] = overcounted
        if overcounted not in (0, self.num_rejected[row]):
            raise PlanError(
                f"request {request_id}: {num_computed} tokens computed says the plan, "
                f"{held} are computed here"
            )

    def _append_blocks(self, row: int, block_ids: tuple[int, ...]) -> None:
        for block_id in block_ids:
            if not 0 <= block_id < self._num_blocks:
                raise PlanError(
                    f"request {self.info(row).request_id}: there is no block {block_id}"
                )
        start = int(self.num_blocks_of[row])
        end = start + len(block_ids)
        if end > self.block_tables.shape[1]:
            self.block_tables = _widened(self.block_tables, end)
        self.block_tables[row, start:end] = block_ids
        self.num_blocks_of[row] = end

    def _take_row(self) -> int:
        if not self._free_rows:
            num_rows = len(self.infos)
            num_added = max(8, num_rows)
            self._free_rows.extend(range(num_rows + num_added - 1, num_rows - 1, -1))
            self.infos.extend([None] * num_added)
            self.token_ids = _lengthened(self.token_ids, num_added)
            self.block_tables = _lengthened(self.block_tables, num_added)
            self.num_tokens = _lengthened(self.num_tokens, num_added)
            self.num_prompt_tokens = _lengthened(self.num_prompt_tokens, num_added)
            self.num_computed_tokens = _lengthened(self.num_computed_tokens, num_added)
            self.num_blocks_of = _lengthened(self.num_blocks_of, num_added)
            self.num_rejected = _lengthened(self.num_rejected, num_added)
            self.num_overcounted = _lengthened(self.num_overcounted, num_added)
        return self._free_rows.pop()

    def _widen_tokens(self, num_tokens: int) -> None:
        if num_tokens > self.token_ids.shape[1]:
            self.token_ids = _widened(self.token_ids, num_tokens)


def _lengthened(column: Int32Array, num_added: int) -> Int32Array:
    added = np.zeros((num_added, *column.shape[1:]), dtype=column.dtype)
    return np.concatenate([column, added])


def _widened(column: Int32Array, width: int) -> Int32Array:
    """At least doubled, so that appending one by one stays cheap."""
    width = max(width, 2 * column.shape[1])
    wider = np.zeros((column.shape[0], width), dtype=column.dtype)
    wider[:, : column.shape[1]] = column
    return wider
