"""One call of a client, complete: its submissions, and what is needed to answer it.

Knows nothing about HTTP or sessions. Invariant: all of it can be read back from the submissions, of
which the scheduler keeps a copy; so any gateway can go on answering the call.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from enum import Enum

from gateway_svc.detokenizer import TextRules
from segue.types import Submission

CHOICE_SEPARATOR = "-"


class CallKind(Enum):
    CHAT = "chat"
    COMPLETION = "completion"


ID_PREFIXES = {CallKind.CHAT: "chatcmpl", CallKind.COMPLETION: "cmpl"}


@dataclass(slots=True, frozen=True)
class CallShape:
    """How the call is to be answered: what is neither in its submissions nor in its rows."""

    kind: CallKind
    model: str
    created: int
    num_choices: int
    is_stream: bool = False
    stops: tuple[str, ...] = ()
    include_stop: bool = False
    skip_special_tokens: bool = True
    include_usage: bool = False
    continuous_usage: bool = False
    return_token_ids: bool = False

    def to_context(self) -> str:
        fields = asdict(self) | {"kind": self.kind.value}
        return json.dumps(fields, ensure_ascii=False, separators=(",", ":"))

    @classmethod
    def from_context(cls, context: str) -> CallShape:
        fields = json.loads(context)
        fields |= {"kind": CallKind(fields["kind"]), "stops": tuple(fields["stops"])}
        return cls(**fields)

    def text_rules(self, submission: Submission) -> TextRules:
        params = submission.sampling_params
        terminal = set(params.stop_token_ids)
        if params.eos_token_id is not None:
            terminal.add(params.eos_token_id)
        return TextRules(
            stops=self.stops,
            include_stop=self.include_stop,
            skip_special_tokens=self.skip_special_tokens,
            min_tokens=params.min_tokens,
            terminal_token_ids=frozenset(terminal),
        )


@dataclass(slots=True, frozen=True)
class Call:
    """`submissions[i]` is choice i of the answer. `call_id` is the id in the answer's body."""

    call_id: str
    shape: CallShape
    submissions: tuple[Submission, ...]

    @property
    def num_prompt_tokens(self) -> int:
        """Each prompt counts once, whatever the number of choices drawn for it."""
        return sum(len(s.prompt_token_ids) for s in self.submissions if s.choice == 0)


def request_id_of(call_id: str, choice: int) -> str:
    return f"{call_id}{CHOICE_SEPARATOR}{choice}"


def call_id_of(request_id: str) -> str:
    return request_id.rpartition(CHOICE_SEPARATOR)[0]


def choice_index_of(request_id: str) -> int:
    return int(request_id.rpartition(CHOICE_SEPARATOR)[2])
