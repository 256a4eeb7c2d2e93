"""What is exported resolves, and is exported once, though a scheduler was killed in the middle.

Two gateways, two executors, our own receiver, and OTLP over gRPC.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pytest
from openai import AsyncOpenAI

from tests.chaos.streams import Ask, Stream, asks, read
from tests.otlp_receiver import OtlpReceiver
from tests.otlp_spans import ReceivedSpan
from tests.served import ONE_THREAD, Served, wait_until
from tests.span_checks import exported_twice, unresolved_links, unresolved_parents

STEP_MS = 10
NUM_STREAMS = 8
MAX_TOKENS = 400
KILLED_AFTER_TOKENS = 200
# Half a second that spans wait to be exported, and as much again for threads that get no CPU.
LOST_WITHIN_NS = 1_000_000_000


@dataclass(slots=True, frozen=True)
class Traced:
    """All that was exported of streams that were open while the scheduler was killed."""

    spans: list[ReceivedSpan]
    streams: list[Stream]
    killed_at_ns: int

    def steps(self) -> list[ReceivedSpan]:
        return [span for span in self.spans if span.name == "engine.step"]


async def _disturbed(
    served: Served, receiver: OtlpReceiver, asked: list[Ask]
) -> tuple[list[Stream], int]:
    """Half of the streams on each gateway; what they gave, and when the scheduler was killed."""
    clients = [
        AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=100)
        for url in served.gateway_urls()
    ]
    streams = [Stream() for _ in asked]
    tasks = [
        asyncio.create_task(read(clients[i % len(clients)], ask, served.model, stream))
        for i, (ask, stream) in enumerate(zip(asked, streams, strict=True))
    ]
    async with asyncio.timeout(100):
        while min(len(stream.token_ids) for stream in streams) < KILLED_AFTER_TOKENS:
            await asyncio.sleep(0.01)
        while not receiver.store.named("engine.step"):
            await asyncio.sleep(0.01)
        killed_at_ns = time.time_ns()
        old_pid = served.kill("scheduler-0")
        await asyncio.to_thread(served.wait_restarted, "scheduler-0", old_pid)
        await asyncio.gather(*tasks)
    for client in clients:
        await client.close()
    return streams, killed_at_ns


@pytest.fixture(scope="module")
def traced(hand_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Traced:
    with OtlpReceiver() as receiver:
        slow = {"SEGUE_FAULT_STEP_DELAY_MS": str(STEP_MS)}
        served = Served(
            hand_model,
            tmp_path_factory.mktemp("serve") / "state",
            ["--num-gateways", "2", "--num-executors", "2"],
            {**ONE_THREAD, **slow, **receiver.environ},
        )
        try:
            asked = asks(NUM_STREAMS, MAX_TOKENS)
            streams, killed_at_ns = asyncio.run(_disturbed(served, receiver, asked))
            wait_until(
                lambda: len(receiver.store.named("request")) >= NUM_STREAMS, "the requests' spans"
            )
        finally:
            served.stop()  # each service exports what it still has
            print(served.log()[-20_000:])
        spans = receiver.store.all()
    return Traced(spans, streams, killed_at_ns)


def test_three_services_tell_of_one_system(traced: Traced) -> None:
    """And the streams were what they have to be, so it was not a wreck that was traced."""
    assert {span.service for span in traced.spans} == {
        *("segue-gateway", "segue-scheduler", "segue-executor")
    }
    assert {span.instance for span in traced.spans} == {"g0", "g1", "s0", "e0", "e1"}
    assert {len(stream.token_ids) for stream in traced.streams} == {MAX_TOKENS}


def test_every_link_resolves(traced: Traced) -> None:
    lost = _lost_steps(traced)
    found = [link for link in unresolved_links(traced.spans) if link[1] not in lost]
    assert found == []


def test_every_parent_resolves_but_of_the_steps_that_the_kill_has_lost(traced: Traced) -> None:
    orphans = unresolved_parents(traced.spans)
    assert {span.name for span in orphans} <= {"execute_model"}
    assert all(span.attributes["segue.epoch"] == 1 for span in orphans)


def test_a_kill_loses_only_the_last_steps(traced: Traced) -> None:
    """Those that had ended within the time that spans wait to be exported; what came before is
    there, and there is more of that than the bound is long."""
    orphans = unresolved_parents(traced.spans)
    assert [s for s in orphans if traced.killed_at_ns - s.end_ns > LOST_WITHIN_NS] == []
    ends = [s.end_ns for s in traced.steps() if s.attributes["segue.epoch"] == 1]
    assert max(ends) - min(ends) > LOST_WITHIN_NS


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
    assert len(executed) > 2 * MAX_TOKENS / 2
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


def _lost_steps(traced: Traced) -> set[tuple[str, str]]:
    """Steps that the executor ran and the killed scheduler could not tell: their root's ids."""
    return {
        (span.trace_id, f"{int(span.parent_id, 16) ^ 1:016x}")
        for span in unresolved_parents(traced.spans)
    }
