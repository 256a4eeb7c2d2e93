"""What a feature is to the scheduler: one object with the hooks that it needs, and no others.

Knows nothing about any feature. Invariant: a hook that no rule overrides costs nothing, since
`RuleBook` lists for each hook only the rules that do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any

from scheduler_svc.core.request import Request
from scheduler_svc.core.unified.step_draft import StepDraft


class Verdict(Enum):
    """SKIP: this one waits, others may pass it. STOP: nobody is admitted any more in this step."""

    PASS = "pass"
    SKIP = "skip"
    STOP = "stop"


class Rule:
    """Override what the rule needs. Hooks are called in the order of the rules.

    The first group decides, and changes nothing but what the rule itself remembers of this step.
    The second group is told what was decided.
    """

    def may_run(self, request: Request, draft: StepDraft) -> bool:
        """Whether a running request is served in this step."""
        raise NotImplementedError

    def check(self, request: Request, draft: StepDraft) -> Verdict:
        """Whether the head of the waiting queue may be looked at further."""
        raise NotImplementedError

    def check_computed(self, request: Request, num_computed: int, draft: StepDraft) -> Verdict:
        """The same, once it is known how much of it is cached."""
        raise NotImplementedError

    def clamp(self, request: Request, num_computed: int, num_tokens: int) -> int:
        """How many of these tokens the request may have, 0 for none."""
        raise NotImplementedError

    def begin_step(self, draft: StepDraft) -> None:
        raise NotImplementedError

    def begin_admission(self, draft: StepDraft) -> None:
        """The running requests are served; waiting ones are looked at now."""
        raise NotImplementedError

    def scheduled(self, request: Request, draft: StepDraft) -> None:
        """The request got its blocks, with the number of tokens last given by `clamp`."""
        raise NotImplementedError

    def undone(self, request: Request, draft: StepDraft) -> None:
        """A running request that was scheduled in this step lost it to a more important one."""
        raise NotImplementedError

    def end_admission(self, draft: StepDraft) -> None:
        """The waiting requests were looked at. Not called where none may be admitted."""
        raise NotImplementedError

    def planned(self, draft: StepDraft) -> None:
        """All of the step is decided."""
        raise NotImplementedError

    def samples(self, request: Request, draft: StepDraft) -> None:
        """This request samples in the step that was planned."""
        raise NotImplementedError

    def processed(self, request: Request) -> None:
        """A row of the request was answered; its progress is up to date, its tokens not yet."""
        raise NotImplementedError

    def left(self, request: Request) -> None:
        """The request gave up its blocks: preempted, finished, or not admitted after all."""
        raise NotImplementedError

    def forget_all(self) -> None:
        """A generation ended: nothing is in the executor's memory any more."""
        raise NotImplementedError


class RuleBook:
    """For each hook, the rules that have it."""

    def __init__(self, rules: Sequence[Rule]) -> None:
        self.may_run: list[Callable[[Request, StepDraft], bool]] = _having(rules, "may_run")
        self.check: list[Callable[[Request, StepDraft], Verdict]] = _having(rules, "check")
        self.check_computed: list[Callable[[Request, int, StepDraft], Verdict]] = _having(
            rules, "check_computed"
        )
        self.clamp: list[Callable[[Request, int, int], int]] = _having(rules, "clamp")
        self.begin_step: list[Callable[[StepDraft], None]] = _having(rules, "begin_step")
        self.begin_admission: list[Callable[[StepDraft], None]] = _having(rules, "begin_admission")
        self.scheduled: list[Callable[[Request, StepDraft], None]] = _having(rules, "scheduled")
        self.undone: list[Callable[[Request, StepDraft], None]] = _having(rules, "undone")
        self.end_admission: list[Callable[[StepDraft], None]] = _having(rules, "end_admission")
        self.planned: list[Callable[[StepDraft], None]] = _having(rules, "planned")
        self.samples: list[Callable[[Request, StepDraft], None]] = _having(rules, "samples")
        self.processed: list[Callable[[Request], None]] = _having(rules, "processed")
        self.left: list[Callable[[Request], None]] = _having(rules, "left")
        self.forget_all: list[Callable[[], None]] = _having(rules, "forget_all")


def _having(rules: Sequence[Rule], hook: str) -> list[Any]:
    inherited = getattr(Rule, hook)
    return [getattr(rule, hook) for rule in rules if getattr(type(rule), hook) is not inherited]
