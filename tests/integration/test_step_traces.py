"""Steps and requests as spans: the real core and its tracer, over real OTLP to our receiver."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from scheduler_svc.core.events import GenerationEnded, Rejected, RequestAborted
from scheduler_svc.core.scheduler_config import SchedulerConfig
from scheduler_svc.core.three_queue.config import ThreeQueueConfig
from segue.tracing import names
from segue.tracing.provider import open_tracer
from segue.tracing.tracer import Tracer
from segue.types import Capacity
from tests.otlp_receiver import OtlpReceiver
from tests.otlp_spans import ReceivedSpan
from tests.span_checks import (
    children,
    exported_twice,
    of_request,
    unresolved_links,
    unresolved_parents,
)
from tests.traced_core import ALL_STEPS, LANE, TracedCore, now_ms, submission

CONFIG = SchedulerConfig(
    block_size=4, max_num_seqs=256, max_num_batched_tokens=2048, max_model_len=256
)
NO_STEPS = replace(ALL_STEPS, ratio=0.0)
Spans = Callable[[], list[ReceivedSpan]]


@pytest.fixture
def receiver(monkeypatch: pytest.MonkeyPatch) -> Iterator[OtlpReceiver]:
    with OtlpReceiver() as receiver:
        for name, value in receiver.environ.items():
            monkeypatch.setenv(name, value)
        yield receiver


@pytest.fixture
def tracer(receiver: OtlpReceiver) -> Iterator[Tracer]:
    tracer = open_tracer(names.SERVICE_SCHEDULER, "s0")
    assert tracer is not None
    yield tracer
    tracer.close()


@pytest.fixture
def spans(receiver: OtlpReceiver, tracer: Tracer) -> Spans:
    """All that was exported so far, which is all that was recorded."""

    def read() -> list[ReceivedSpan]:
        assert tracer.flush(5.0)
        return receiver.store.all()

    return read


def steps(found: list[ReceivedSpan]) -> list[ReceivedSpan]:
    return sorted((s for s in found if s.name == "engine.step"), key=lambda s: s.start_ns)


def kept_because(found: list[ReceivedSpan]) -> dict[int, list[str]]:
    key, why = "segue.step.id", "segue.step.kept_because"
    return {span.attributes[key]: span.attributes[why] for span in steps(found)}


def test_a_step_has_its_parts_and_links_to_its_requests(tracer: Tracer, spans: Spans) -> None:
    core = TracedCore(tracer, CONFIG)
    core.connect()
    core.submit(submission("a"), submission("b", num_prompt=5))
    answered = core.finish_all()
    found = spans()
    assert [s.attributes["segue.step.id"] for s in steps(found)] == [k.step_id for k in answered]
    first = steps(found)[0]
    assert children(found, first) == [
        *("schedule", "redis.commit", "executor.execute", "update_from_output")
    ]
    expected = {
        "segue.epoch": 1,
        "segue.lane": LANE,
        "segue.policy": "unified",
        "segue.tokens.scheduled": 13,
        "segue.tokens.prefill": 13,
        "segue.tokens.decode": 0,
        "segue.tokens.budget_left": 2035,
        "segue.requests.running": 2,
        "segue.requests.waiting": 0,
        "segue.blocks.used": 4,
        "segue.blocks.free": 995,
    }
    assert first.attributes.items() >= expected.items()
    assert first.attributes["segue.wire.bytes"] > 0
    assert [link.attributes for link in first.links] == [
        {"segue.request.id": "a", "segue.request.phase": "prefill", "segue.request.tokens": 8},
        {"segue.request.id": "b", "segue.request.phase": "prefill", "segue.request.tokens": 5},
    ]
    assert steps(found)[1].attributes["segue.tokens.decode"] == 2
    assert (unresolved_links(found), exported_twice(found)) == ([], [])


def test_a_request_has_its_phases_which_link_to_the_step_that_began_them(
    tracer: Tracer, spans: Spans
) -> None:
    core = TracedCore(tracer, CONFIG)
    core.connect()
    core.submit(submission("a"))
    core.finish_all()
    found = spans()
    request = of_request(found, "a")
    assert children(found, request) == ["queued", "prefill", "decode"]
    assert request.attributes["segue.end.reason"] == "length"
    assert request.attributes["gen_ai.usage.output_tokens"] == 4
    (prefill,) = [s for s in found if s.name == "prefill"]
    assert [link.span_id for link in prefill.links] == [steps(found)[0].span_id]


def test_200_requests_in_one_step_keep_their_links(tracer: Tracer, spans: Spans) -> None:
    """The SDK's limit is 128. Their attributes are one text: on links they would cost too much."""
    core = TracedCore(tracer, CONFIG)
    core.connect()
    core.submit(*[submission(f"r{i:03}", num_prompt=5) for i in range(200)])
    core.finish_all()
    found = spans()
    first = steps(found)[0]
    assert (len(first.links), first.num_dropped_links) == (200, 0)
    assert first.attributes["segue.step.num_requests"] == 200
    packed = first.attributes["segue.step.requests"].split()
    assert packed == [f"r{i:03}=prefill:5" for i in range(200)]
    assert unresolved_links(found) == []
    assert [link.span_id for link in first.links] == [
        of_request(found, f"r{i:03}").span_id for i in range(200)
    ]


def test_a_request_that_is_not_sampled_is_not_linked_to(tracer: Tracer, spans: Spans) -> None:
    core = TracedCore(tracer, CONFIG)
    core.connect()
    unsampled = submission("a").traceparent[:-2] + "00"
    core.submit(
        submission("a", traceparent=unsampled), submission("b"), submission("c", traceparent="")
    )
    core.finish_all()
    found = spans()
    assert [s.attributes["segue.request.id"] for s in found if s.name == "request"] == ["b"]
    with_requests = [step for step in steps(found) if step.attributes["segue.step.num_requests"]]
    assert {len(step.links) for step in with_requests} == {1}
    assert steps(found)[0].attributes["segue.step.num_requests"] == 3
    assert unresolved_links(found) == []


def test_of_all_steps_the_ratio_keeps_its_share_and_the_first(tracer: Tracer, spans: Spans) -> None:
    core = TracedCore(tracer, CONFIG, replace(ALL_STEPS, ratio=0.25))
    core.connect()
    core.submit(submission("a", max_tokens=15))
    core.finish_all()
    kept = kept_because(spans())
    assert kept[1] == ["first_of_epoch"]
    assert [step_id for step_id, why in kept.items() if why == ["ratio"]] == [4, 8, 12, 16]


def test_a_step_that_preempts_is_kept(tracer: Tracer, spans: Spans) -> None:
    core = TracedCore(tracer, CONFIG, NO_STEPS, capacity=Capacity(6, 4))
    core.connect()
    core.submit(submission("a", max_tokens=8), submission("b", max_tokens=8))
    core.finish_all()
    found = spans()
    (step,) = [s for s in steps(found) if "preempts" in s.attributes["segue.step.kept_because"]]
    assert step.attributes["segue.requests.preempted_ids"] == ["b"]
    request = of_request(found, "b")
    (event,) = [e for e in request.events if e.name == "preempted"]
    assert event.attributes == {"cause": "blocks_ran_out", "mode": "recompute"}
    assert children(found, request) == [*("queued", "prefill", "queued", "prefill", "decode")]
    assert request.attributes["segue.request.num_preemptions"] == 1
    assert unresolved_links(found) == []


def test_a_step_that_is_slow_is_kept(tracer: Tracer, spans: Spans) -> None:
    core = TracedCore(tracer, CONFIG, replace(NO_STEPS, slow_step_ns=1))
    core.connect()
    core.submit(submission("a"))
    core.finish_all()
    assert all("slow" in why for why in kept_because(spans()).values())


def test_steps_of_a_lost_lane_are_kept_and_say_why(tracer: Tracer, spans: Spans) -> None:
    core = TracedCore(tracer, CONFIG, NO_STEPS)
    core.connect()
    core.submit(submission("a"))
    core.answer()
    lost = core.in_flight()
    core.commit(GenerationEnded(LANE, lost[0].generation, "step 2 failed: no memory", now_ms()))
    core.connect()
    core.finish_all()
    found = spans()
    failed = [s for s in steps(found) if "failed" in s.attributes["segue.step.kept_because"]]
    assert [s.attributes["segue.step.id"] for s in failed] == [plan.step_id for plan in lost]
    assert {s.error for s in failed} == {"step 2 failed: no memory"}
    request = of_request(found, "a")
    assert [e.attributes["cause"] for e in request.events] == ["step 2 failed: no memory"]


def test_a_rejected_request_has_a_span_that_says_why(tracer: Tracer, spans: Spans) -> None:
    core = TracedCore(tracer, CONFIG)
    core.connect()
    (reply,) = core.submit(submission("a", num_prompt=300))
    assert isinstance(reply, Rejected)
    request = of_request(spans(), "a")
    assert request.attributes["segue.end.reason"] == "rejected"
    assert request.attributes["error.type"] == "too_long"
    assert request.error == reply.message


def test_an_aborted_request_says_by_whom(tracer: Tracer, spans: Spans) -> None:
    core = TracedCore(tracer, CONFIG)
    core.connect()
    core.submit(submission("a", max_tokens=100))
    core.answer()
    core.commit(RequestAborted("g0", "a", "the client left", now_ms()))
    core.finish_all()
    request = of_request(spans(), "a")
    assert request.attributes["segue.end.reason"] == "abort"
    assert [(e.name, e.attributes) for e in request.events] == [
        ("aborted", {"by": "the client left"})
    ]


def test_swapping_shows_on_the_step_and_on_the_request(tracer: Tracer, spans: Spans) -> None:
    common = replace(CONFIG, async_scheduling=False)
    swapping = replace(ThreeQueueConfig.of(common), preemption_mode="swap")
    core = TracedCore(tracer, swapping, capacity=Capacity(6, 4, num_cpu_blocks=8))
    core.connect()
    core.submit(submission("a", max_tokens=8), submission("b", max_tokens=8))
    core.finish_all()
    found = spans()
    assert sum(s.attributes.get("segue.blocks.swapped_out", 0) for s in steps(found)) > 0
    assert sum(s.attributes.get("segue.blocks.swapped_in", 0) for s in steps(found)) > 0
    request = of_request(found, "b")
    assert request.event_names() == ["preempted", "swapped_in"] * 2
    assert request.events[0].attributes["mode"] == "swap"
    assert children(found, request) == [
        *("queued", "prefill", "decode", "swapped", "decode", "swapped", "decode")
    ]


def test_a_successor_ends_what_was_left_and_links_back(tracer: Tracer, spans: Spans) -> None:
    """Killed: what the first had not ended is never told by it, and by the second once."""
    first = TracedCore(tracer, CONFIG, NO_STEPS)
    first.connect()
    first.submit(submission("a", max_tokens=6), submission("b", max_tokens=6))
    first.answer()
    left = [plan.step_id for plan in first.in_flight()]
    second = TracedCore(tracer, CONFIG, NO_STEPS, predecessor=first)
    assert second.in_flight() == first.in_flight()
    second.finish_all()
    found = spans()
    kept = kept_because(found)
    assert [step_id for step_id, why in kept.items() if "adopted" in why] == left
    by_id = {step.attributes["segue.step.id"]: step for step in steps(found)}
    opening = by_id[left[-1] + 1]
    assert opening.attributes["segue.epoch"] == 2
    assert [
        link.span_id
        for link in opening.links
        if link.attributes.get("segue.link") == "last_step_of_previous_epoch"
    ] == [by_id[left[-1]].span_id]
    request = of_request(found, "a")
    assert request.event_names() == ["resumed"]
    (decode,) = [s for s in found if s.name == "decode" and s.parent_id == request.span_id]
    assert [link.attributes["segue.link"] for link in decode.links] == ["resumed_after"]
    assert (unresolved_links(found), exported_twice(found)) == ([], [])
    assert {s.name for s in unresolved_parents(found)} == {"request"}  # no gateway in this test


def test_a_client_without_a_context_costs_no_span_and_no_link(tracer: Tracer, spans: Spans) -> None:
    core = TracedCore(tracer, CONFIG)
    core.connect()
    core.submit(submission("a", traceparent="not a traceparent"))
    core.finish_all()
    assert {s.name for s in spans()}.isdisjoint({"request", "queued", "prefill", "decode"})
