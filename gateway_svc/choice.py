"""One choice of a call: the rows received of it (D), their text, and how it ended.

Knows nothing about streams, in either direction. Invariant (I8): rows come in order, without a gap,
and none is ever replaced; what comes again must be the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gateway_svc.detokenizer import Detokenizer, TextRules
from gateway_svc.tokenizer import Tokenizer
from segue.types import Attachment, Finish, FinishReason, RequestOutput, Submission, TokenLogprobs


class RowGap(Exception):
    """Rows are missing before these: the session's cursor is not ours."""


class RowMismatch(Exception):
    """A row that we have came again with another token: a fault of ours, never shown."""


@dataclass(slots=True, frozen=True)
class ChoiceEnd:
    """`stop_reason`: the stop string or the stop token id that ended it, where one did."""

    reason: FinishReason
    stop_reason: str | int | None = None
    message: str = ""


class Choice:
    """`end` is how the client sees it; `is_settled` that the scheduler owes us nothing any more.

    A choice that was ended by a stop string has an end and is not settled: its abort is under way.
    """

    def __init__(self, submission: Submission, tokenizer: Tokenizer, rules: TextRules) -> None:
        self.submission = submission
        self.request_id = submission.request_id
        self.token_ids: list[int] = []
        self.logprobs: list[TokenLogprobs] = []
        self.text_offsets: list[int] = []  # of each token of the answer: where its text begins
        self.num_cached_tokens = 0
        self.end: ChoiceEnd | None = None
        self.is_accepted = False
        self.is_settled = False
        self.abort_reason = ""  # set: it is not wanted any more
        self.was_attached = False  # another gateway began it
        self.arrived_at = 0.0  # these three by this process's monotonic clock; 0: not yet
        self.first_row_at = 0.0
        self.last_row_at = 0.0
        self._detokenizer = Detokenizer(tokenizer, rules)

    @property
    def num_answer_tokens(self) -> int:
        """Tokens up to the end; the rows behind a stop string are no part of the answer."""
        return self._detokenizer.num_tokens

    @property
    def shown_text(self) -> str:
        return self._detokenizer.text[: self._detokenizer.num_safe_chars]

    def text_from(self, start: int) -> str:
        """The text that may be shown, from character `start` on."""
        return self._detokenizer.text[start : self._detokenizer.num_safe_chars]

    def attachment(self) -> Attachment:
        return Attachment(
            self.request_id, tuple(self.token_ids), tuple(self.logprobs), self.is_settled
        )

    def receive(self, output: RequestOutput) -> int:
        """Takes the rows that are new, and the end if it came; returns the number of new rows."""
        known = len(self.token_ids)
        if output.first_index > known:
            raise RowGap(f"{self.request_id}: row {output.first_index} came after {known} rows")
        num_repeated = min(known - output.first_index, len(output.new_token_ids))
        repeated = self.token_ids[output.first_index : output.first_index + num_repeated]
        if repeated != list(output.new_token_ids[:num_repeated]):
            raise RowMismatch(f"{self.request_id}: rows from {output.first_index} on differ")
        fresh = output.new_token_ids[num_repeated:]
        self.token_ids += fresh
        self.logprobs += output.logprobs[num_repeated:]
        self.num_cached_tokens = max(self.num_cached_tokens, output.num_cached_tokens)
        self._extend_text(fresh)
        if output.finish is not None:
            self.is_settled = True
            self._finish(output.finish)
        return len(fresh)

    def receive_token(self, index: int, token_id: int) -> bool:
        """Takes the next token, if that is all there is to it; else false, and nothing is taken."""
        if index != len(self.token_ids) or self.end is not None:
            return False
        self.token_ids.append(token_id)
        self._append_text(token_id)
        return True

    def fail(self, reason: FinishReason, message: str) -> None:
        """The choice ends here, without the scheduler's word."""
        self.is_settled = True
        if self.end is None:
            self._detokenizer.flush()
            self.end = ChoiceEnd(reason, message=message)

    def _extend_text(self, token_ids: Sequence[int]) -> None:
        for token_id in token_ids:
            if self.end is not None:
                return
            self._append_text(token_id)

    def _append_text(self, token_id: int) -> None:
        detokenizer = self._detokenizer
        self.text_offsets.append(len(detokenizer.text))
        detokenizer.append(token_id)
        if detokenizer.stopped_by is not None:
            self.end = ChoiceEnd(FinishReason.STOP, detokenizer.stopped_by)

    def _finish(self, finish: Finish) -> None:
        if self.end is not None:
            return
        self._detokenizer.flush()
        self.num_cached_tokens = max(self.num_cached_tokens, finish.usage.num_cached_tokens)
        self.end = ChoiceEnd(finish.reason, finish.stop_reason, finish.message)
