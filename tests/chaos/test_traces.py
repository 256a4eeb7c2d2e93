"""What is exported resolves, and is exported once, though a scheduler was killed in the middle.

Two gateways, two executors, our own receiver, and OTLP over gRPC. Executors run as many steps as
the test allows them, so that what is told before the kill does not depend on the machine's speed.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.chaos.kills import held_streams, kill, let_run
from tests.chaos.step_gate import StepGate
from tests.chaos.streams import Stream, asks
from tests.otlp_receiver import OtlpReceiver
from tests.otlp_spans import ReceivedSpan
from tests.served import ONE_THREAD, Served, wait_until
from tests.span_checks import exported_twice, unresolved_links, unresolved_parents

NUM_STREAMS = 8
MAX_TOKENS = 200
NUM_STEPS_BEFORE = 60
NUM_STEPS_OF_KILL = 6
Step = tuple[str, int]  # lane and step id


@dataclass(slots=True, frozen=True)
class Traced:
    """All that was exported of streams that were open while the scheduler was killed.

    `told`: the steps that had been exported when the executors were allowed the
    `NUM_STEPS_OF_KILL` steps in the midst of which it was killed.
    """

    spans: list[ReceivedSpan]
    streams: list[Stream]
    told: set[Step]

    def steps(self) -> list[ReceivedSpan]:
        return [span for span in self.spans if span.name == "engine.step"]

    def untold(self) -> list[ReceivedSpan]:
        """What executors ran of steps that the killed scheduler could not tell."""
        return unresolved_parents(self.spans)


def _step(span: ReceivedSpan) -> Step:
    return span.attributes["segue.lane"], span.attributes["segue.step.id"]


async def _disturbed(
    served: Served, gate: StepGate, receiver: OtlpReceiver
) -> tuple[list[Stream], set[Step]]:
    """What the streams gave, half of them on each gateway, and which steps were told before."""

    def told() -> list[ReceivedSpan]:
        return receiver.store.named("engine.step")

    asked = asks(NUM_STREAMS, MAX_TOKENS)
    urls = served.gateway_urls()
    async with asyncio.timeout(100), held_streams(served, gate, asked, urls=urls) as streams:
        await let_run(streams, gate, num_steps=NUM_STEPS_BEFORE, num_tokens=1)
        await asyncio.to_thread(
            wait_until, lambda: len(told()) == gate.num_allowed, "all steps are told"
        )
        before = {_step(span) for span in told()}
        await let_run(streams, gate, num_steps=NUM_STEPS_OF_KILL, num_tokens=1)
        await kill(served, ["scheduler-0"])
    return streams.all, before


@pytest.fixture(scope="module")
def traced(hand_model: Path, gate: StepGate, tmp_path_factory: pytest.TempPathFactory) -> Traced:
    with OtlpReceiver() as receiver:
        served = Served(
            hand_model,
            tmp_path_factory.mktemp("serve") / "state",
            ["--num-gateways", "2", "--num-executors", "2"],
            {**ONE_THREAD, **gate.environ, **receiver.environ},
        )
        try:
            streams, told = asyncio.run(_disturbed(served, gate, receiver))
            wait_until(
                lambda: len(receiver.store.named("request")) >= NUM_STREAMS, "the requests' spans"
            )
        finally:
            served.stop()  # each service exports what it still has
            print(served.log()[-20_000:])
        spans = receiver.store.all()
    return Traced(spans, streams, told)


def test_three_services_tell_of_one_system(traced: Traced) -> None:
    """And the streams were what they have to be, so it was not a wreck that was traced."""
    assert {span.service for span in traced.spans} == {
        *("segue-gateway", "segue-scheduler", "segue-executor")
    }
    assert {span.instance for span in traced.spans} == {"g0", "g1", "s0", "e0", "e1"}
    assert {len(stream.token_ids) for stream in traced.streams} == {MAX_TOKENS}


def test_every_link_resolves(traced: Traced) -> None:
    untold = {(span.trace_id, _root_of(span.parent_id)) for span in traced.untold()}
    found = [link for link in unresolved_links(traced.spans) if link[1] not in untold]
    assert found == []


def test_every_parent_resolves_but_of_the_steps_that_the_kill_has_lost(traced: Traced) -> None:
    untold = traced.untold()
    assert {span.name for span in untold} <= {"execute_model"}
    assert all(span.attributes["segue.epoch"] == 1 for span in untold)


def test_a_kill_loses_only_the_last_steps(traced: Traced) -> None:
    """Those that had ended since the last export; what had been told before is whole."""
    assert {lane for lane, _ in traced.told} == {"e0", "e1"}
    last_told = dict(sorted(traced.told))
    untold = [_step(span) for span in traced.untold()]
    assert [(lane, step) for lane, step in untold if step <= last_told[lane]] == []
    assert len(untold) <= NUM_STEPS_OF_KILL


def test_nothing_is_exported_twice(traced: Traced) -> None:
    assert exported_twice(traced.spans) == []


def test_each_request_has_one_span_which_says_that_it_was_resumed(traced: Traced) -> None:
    requests = [span for span in traced.spans if span.name == "request"]
    assert len(requests) == NUM_STREAMS
    assert all("resumed" in span.event_names() for span in requests)
    assert {span.attributes["segue.end.reason"] for span in requests} == {"length"}
    roots = {span.span_id: span for span in traced.spans if span.service == "segue-gateway"}
    assert {span.parent_id for span in requests} == set(roots)


def test_the_first_step_of_the_new_epoch_links_to_the_last_of_the_old(traced: Traced) -> None:
    by_id = {span.span_id: span for span in traced.steps()}
    found = [
        (span, by_id[link.span_id])
        for span in traced.steps()
        for link in span.links
        if link.attributes.get("segue.link") == "last_step_of_previous_epoch"
    ]
    assert {new.attributes["segue.lane"] for new, _ in found} == {"e0", "e1"}
    for new, old in found:
        assert new.attributes["segue.lane"] == old.attributes["segue.lane"]
        assert new.attributes["segue.step.id"] == old.attributes["segue.step.id"] + 1
        assert new.attributes["segue.epoch"] > old.attributes["segue.epoch"]
        assert old.attributes["segue.adopted"] is True


def test_a_steps_tokens_are_those_that_the_executor_has_computed(traced: Traced) -> None:
    """Counted on both sides, while the next step is planned already (overlap is the default)."""
    key = "segue.tokens.scheduled"
    steps = {span.trace_id: span for span in traced.steps()}
    executed = [s for s in traced.spans if s.name == "execute_model" and s.trace_id in steps]
    assert len(executed) >= MAX_TOKENS
    differing = [
        span for span in executed if span.attributes[key] != steps[span.trace_id].attributes[key]
    ]
    assert differing == []


def test_a_step_is_executed_once(traced: Traced) -> None:
    counts = Counter(
        (span.attributes["segue.lane"], span.attributes["segue.step.id"])
        for span in traced.spans
        if span.name == "execute_model"
    )
    assert [step for step, count in counts.items() if count > 1] == []


def _root_of(span_id: str) -> str:
    """The span of the step whose `execute` has this id."""
    return f"{int(span_id, 16) ^ 1:016x}"
