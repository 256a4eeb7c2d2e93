"""All that this gateway wants from the scheduler, and what it has received of it.

Knows nothing about gRPC: `scheduler_client.py` reads what is to be sent from here after each
connection, so nothing hangs on a message having arrived. Invariant: a choice stays in here from its
submission until the scheduler owes us nothing for it, aborts included (rule 5, H24).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from gateway_svc.api_error import ApiError
from gateway_svc.call import Call, CallShape, call_id_of, choice_index_of
from gateway_svc.choice import Choice
from gateway_svc.live_call import LiveCall
from gateway_svc.tokenizer import Tokenizer
from segue.types import Attachment, FinishReason, OutputColumns, Submission

MAX_ENDS_KEPT = 1024  # seconds of them: Redis loses no more


class LedgerObserver(Protocol):
    """Hears what happens, for metrics."""

    def call_added(self, live: LiveCall) -> None: ...
    def batch_began(self) -> None: ...
    def rows_received(self, choice: Choice, num_rows: int, num_repeated: int) -> None: ...
    def batch_ended(self) -> None: ...
    def choice_ended(self, choice: Choice) -> None: ...
    def choice_lost(self, choice: Choice) -> None: ...


@dataclass(slots=True, eq=False)
class Attaching:
    """A call that another gateway began. `choices` fill up until all that `shape` names are in."""

    call_id: str
    on_done: Callable[[LiveCall | None], None]  # None: nobody knows it
    shape: CallShape | None = None
    choices: dict[int, Choice] = field(default_factory=dict[int, Choice])

    @property
    def missing(self) -> list[int]:
        if self.shape is None:
            return [0]
        return [i for i in range(self.shape.num_choices) if i not in self.choices]


class Ledger:
    def __init__(self, tokenizer: Tokenizer, observer: LedgerObserver) -> None:
        self._tokenizer = tokenizer
        self._observer = observer
        self._choices: dict[str, Choice] = {}
        self._call_of: dict[str, LiveCall] = {}  # of a choice that is being answered
        self._calls: dict[str, LiveCall] = {}
        self._attaching: dict[str, Attaching] = {}
        self._ended: dict[str, Choice] = {}  # the latest that the scheduler has ended

    # What the front wants.

    def add(self, live: LiveCall) -> None:
        self._calls[live.call_id] = live
        for choice in live.choices:
            self._call_of[choice.request_id] = live
            if not choice.is_settled:
                self._choices[choice.request_id] = choice
        self._observer.call_added(live)

    def find_call(self, call_id: str) -> LiveCall | None:
        return self._calls.get(call_id)

    def release(self, live: LiveCall, reason: str) -> list[Choice]:
        """Nobody reads this call any more; returns the choices that are to be aborted."""
        if self._calls.get(live.call_id) is live:
            del self._calls[live.call_id]
        for choice in live.choices:
            self._call_of.pop(choice.request_id, None)
        return [choice for choice in live.choices if self._mark_aborted(choice, reason)]

    def attach(self, attaching: Attaching) -> None:
        self._attaching[attaching.call_id] = attaching

    def give_up_attaching(self, attaching: Attaching) -> list[Choice]:
        if self._attaching.get(attaching.call_id) is not attaching:
            return []
        del self._attaching[attaching.call_id]
        return [c for c in attaching.choices.values() if self._mark_aborted(c, "not fetched")]

    # What the session is to send.

    @property
    def num_waiting(self) -> int:
        """Choices of which rows are still wanted."""
        return sum(not choice.abort_reason for choice in self._choices.values())

    @property
    def num_running(self) -> int:
        """Those among them that have begun."""
        return sum(bool(c.token_ids) and not c.abort_reason for c in self._choices.values())

    def attachments(self) -> list[Attachment]:
        """The complete list for a hello. What was being attached is asked for again, whole.

        With it goes what has ended lately: where Redis has lost the end, it is told (H36).
        """
        for attaching in self._attaching.values():
            for choice in attaching.choices.values():
                self._choices.pop(choice.request_id, None)
            attaching.choices.clear()
            attaching.shape = None
        ended = [choice for i, choice in self._ended.items() if i not in self._choices]
        return [choice.attachment() for choice in (*self._choices.values(), *ended)]

    def to_abort(self) -> list[Choice]:
        return [choice for choice in self._choices.values() if choice.abort_reason]

    def to_attach(self) -> list[Attaching]:
        return list(self._attaching.values())

    # What the session brings.

    def receive(self, outputs: OutputColumns) -> list[Choice]:
        """Takes new rows; returns the choices that a stop string ended. RowGap, RowMismatch."""
        stopped: list[Choice] = []
        self._observer.batch_began()
        start = 0
        for row, (request_id, num_tokens) in enumerate(
            zip(outputs.request_ids, outputs.num_tokens, strict=True)
        ):
            choice = self._choices.get(request_id)
            if choice is not None:  # else it ended here, while the row was under way
                self._take_row(choice, outputs, row, start)
                if choice.is_settled:
                    self._note_end(choice)
                elif choice.end is not None and self._mark_aborted(choice, "stop string"):
                    stopped.append(choice)
                self._notify(request_id)
            start += num_tokens
        self._observer.batch_ended()
        return stopped

    def _take_row(self, choice: Choice, outputs: OutputColumns, row: int, start: int) -> None:
        """One token more is nearly all that comes, and needs no object of its own."""
        had_ended = choice.end is not None
        num_tokens = outputs.num_tokens[row]
        is_plain = num_tokens == 1 and row not in outputs.finishes and row not in outputs.logprobs
        if (
            is_plain
            and outputs.num_cached_tokens[row] <= choice.num_cached_tokens
            and choice.receive_token(outputs.first_indices[row], outputs.token_ids[start])
        ):
            num_rows = 1
        else:
            num_rows = choice.receive(outputs.output(row, start))
        if not choice.abort_reason:
            self._observer.rows_received(choice, num_rows, num_tokens - num_rows)
        if choice.end is not None and not had_ended:
            self._observer.choice_ended(choice)

    def _note_end(self, choice: Choice) -> None:
        del self._choices[choice.request_id]
        self._ended.pop(choice.request_id, None)
        self._ended[choice.request_id] = choice
        if len(self._ended) > MAX_ENDS_KEPT:
            del self._ended[next(iter(self._ended))]

    def accepted(self, request_id: str) -> None:
        choice = self._choices.get(request_id)
        if choice is not None:
            choice.is_accepted = True
            self._notify(request_id)

    def attached(self, submission: Submission) -> Attaching | None:
        """One more choice of a call being attached; returns it if more are to be fetched."""
        attaching = self._attaching.get(submission.group_id)
        if attaching is None:
            return None
        index = choice_index_of(submission.request_id)
        is_first = attaching.shape is None
        if attaching.shape is None:
            attaching.shape = CallShape.from_context(submission.client_context)
        choice = Choice(submission, self._tokenizer, attaching.shape.text_rules(submission))
        choice.is_accepted = choice.was_attached = True
        attaching.choices[index] = choice
        self._choices[choice.request_id] = choice
        if not attaching.missing:
            self._finish_attaching(attaching, attaching.shape)
            return None
        return attaching if is_first else None

    def unknown(self, request_id: str) -> LiveCall | None:
        """The scheduler does not have it: returns the call that is to be submitted again."""
        attaching = self._attaching.get(call_id_of(request_id))
        if attaching is not None:
            self.give_up_attaching(attaching)
            attaching.on_done(None)
            return None
        choice = self._choices.get(request_id)
        if choice is None:
            return None
        live = self._call_of.get(request_id)
        if live is None or choice.abort_reason:  # not wanted, and not there: nothing is owed
            del self._choices[request_id]
            if choice.end is None:
                choice.fail(FinishReason.ABORT, choice.abort_reason)
                self._observer.choice_ended(choice)
            return None
        return live

    def detached(self, request_id: str, error: ApiError) -> None:
        """Another gateway has it now."""
        self._lose(request_id, error)

    def rejected(self, request_id: str, error: ApiError) -> None:
        """The whole call is refused: its choices are accepted together or not at all."""
        live = self._call_of.get(request_id)
        if live is None:
            self._lose(request_id, error)
            return
        for choice in live.choices:
            self._lose(choice.request_id, error)

    def _finish_attaching(self, attaching: Attaching, shape: CallShape) -> None:
        del self._attaching[attaching.call_id]
        choices = [attaching.choices[index] for index in sorted(attaching.choices)]
        call = Call(attaching.call_id, shape, tuple(choice.submission for choice in choices))
        live = LiveCall(call, choices)
        self.add(live)
        attaching.on_done(live)

    def _lose(self, request_id: str, error: ApiError) -> None:
        choice = self._choices.pop(request_id, None)
        if choice is None:
            return
        if choice.end is None:
            choice.fail(FinishReason.ERROR, error.message)
            self._observer.choice_lost(choice)
        live = self._call_of.get(request_id)
        if live is not None:
            live.fail(error)

    def _mark_aborted(self, choice: Choice, reason: str) -> bool:
        if choice.is_settled or choice.abort_reason:
            return False
        choice.abort_reason = reason
        return True

    def _notify(self, request_id: str) -> None:
        live = self._call_of.get(request_id)
        if live is not None:
            live.notify()
