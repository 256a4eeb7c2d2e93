"""Steps planned before one commit: the first is noted in short, a second one whole."""

from __future__ import annotations

from scheduler_svc.core.journal import Journal
from tests.factories import make_request


def test_who_is_planned_twice_before_a_commit_is_looked_at_whole() -> None:
    requests = [make_request(name, [1, 2]) for name in "abc"]
    journal = Journal()
    journal.note_planned({"a": 1, "b": 1}, requests[:2])
    assert not journal.requests
    journal.note_planned({"b": 1, "c": 1}, requests[1:])
    assert list(journal.requests) == ["b", "c"]
    assert journal.planned == {"a": 1, "b": 1}


def test_a_plan_that_was_noted_stays_as_it_is() -> None:
    counts = {"a": 1}
    journal = Journal()
    journal.note_planned(counts, [make_request("a", [1])])
    journal.forget("a")
    assert journal.is_empty
    assert counts == {"a": 1}
