"""A request with structured output waits for its grammar, without holding up others (spec 6.4).

Knows nothing about compiling (the shell reports what became of it). Invariant: a request whose
grammar failed is ended once, with the next output that is processed after the scheduler saw it.
"""

from __future__ import annotations

from scheduler_svc.core.journal import Journal
from scheduler_svc.core.request import GrammarState, Request, RequestStatus
from scheduler_svc.core.rules.rule import Rule, Verdict
from scheduler_svc.core.unified.step_draft import StepDraft


class GrammarWait(Rule):
    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._refused: list[Request] = []

    def report(self, request: Request, *, is_ready: bool) -> None:
        """The request's grammar was compiled, or cannot be."""
        assert request.grammar_state is GrammarState.COMPILING
        request.grammar_state = GrammarState.READY if is_ready else GrammarState.FAILED
        self._journal.requests[request.request_id] = request

    def check(self, request: Request, draft: StepDraft) -> Verdict:
        del draft
        if request.status is not RequestStatus.WAITING_FOR_GRAMMAR:
            return Verdict.PASS
        if request.grammar_state is GrammarState.READY:
            request.status = RequestStatus.WAITING
            self._journal.requests[request.request_id] = request
            return Verdict.PASS
        if request.grammar_state is GrammarState.FAILED:
            request.grammar_state = GrammarState.REFUSED
            self._refused.append(request)
        return Verdict.SKIP

    def take_refused(self) -> list[Request]:
        """Requests to be ended with an error now."""
        refused, self._refused = self._refused, []
        return [request for request in refused if not request.is_finished]

    def restore(self, request: Request) -> None:
        if request.grammar_state is GrammarState.REFUSED:
            self._refused.append(request)
