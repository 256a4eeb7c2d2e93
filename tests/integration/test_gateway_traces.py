"""One span for each call, exported over real OTLP, whatever becomes of the call."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from segue.model_files.hand import write_hand_model
from segue.tracing import names
from segue.tracing.provider import open_tracer
from segue.tracing.trace_context import parse_traceparent, request_context
from segue.tracing.tracer import Tracer
from segue.v1 import scheduler_pb2
from tests.otlp_receiver import OtlpReceiver
from tests.otlp_spans import ReceivedSpan
from tests.running_gateway import RunningGateway, serve_gateway, serve_stub
from tests.scheduler_stub import SchedulerStub

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
CLIENTS = {"traceparent": f"00-{TRACE}-{PARENT}-01", "tracestate": "vendor=1"}


@pytest.fixture(params=["grpc", "http"])
def receiver(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    with OtlpReceiver() as receiver:
        environ = receiver.environ if request.param == "grpc" else receiver.http_environ
        for name, value in environ.items():
            monkeypatch.setenv(name, value)
        yield receiver


@pytest.fixture
def tracer(receiver: OtlpReceiver) -> Iterator[Tracer]:
    tracer = open_tracer(names.SERVICE_GATEWAY, "g7")
    assert tracer is not None
    yield tracer
    tracer.close()


@pytest.fixture
async def stub() -> SchedulerStub:
    return SchedulerStub()


@pytest.fixture
async def gateway(
    stub: SchedulerStub, tracer: Tracer, tmp_path: Path
) -> AsyncIterator[RunningGateway]:
    write_hand_model(tmp_path)
    async with (
        serve_stub(stub) as address,
        serve_gateway(tmp_path, address, tracer=tracer) as running,
    ):
        yield running


def the_span(receiver: OtlpReceiver, tracer: Tracer) -> ReceivedSpan:
    assert tracer.flush(5.0)
    (span,) = receiver.store.all()
    return span


async def ask(gateway: RunningGateway, **fields: Any) -> Any:
    models = await gateway.openai.models.list()
    body: Any = {"model": models.data[0].id, "prompt": "abc", "max_tokens": 3}
    return await gateway.openai.completions.create(**body | fields)


async def test_a_clients_context_is_kept_and_handed_on(
    gateway: RunningGateway, stub: SchedulerStub, receiver: OtlpReceiver, tracer: Tracer
) -> None:
    await ask(gateway, extra_headers=CLIENTS)
    span = the_span(receiver, tracer)
    assert (span.trace_id, span.parent_id) == (TRACE, PARENT)
    assert (span.name, span.kind) == ("POST /v1/completions", "server")
    assert (span.service, span.instance) == ("segue-gateway", "g7")
    (submission,) = stub.submits[0].submissions
    assert submission.traceparent == f"00-{TRACE}-{span.span_id}-01"


async def test_an_unsampled_client_stays_unsampled(
    gateway: RunningGateway, stub: SchedulerStub, receiver: OtlpReceiver, tracer: Tracer
) -> None:
    await ask(gateway, extra_headers={"traceparent": f"00-{TRACE}-{PARENT}-00"})
    assert tracer.flush(5.0)
    assert receiver.store.all() == []
    assert stub.submits[0].submissions[0].traceparent.endswith("-00")


async def test_the_call_is_told_in_genai_names(
    gateway: RunningGateway, receiver: OtlpReceiver, tracer: Tracer
) -> None:
    answer = await ask(gateway, n=2, temperature=0.5, seed=7)
    attributes = the_span(receiver, tracer).attributes
    expected = {
        "gen_ai.operation.name": "text_completion",
        "gen_ai.request.choice.count": 2,
        "gen_ai.request.temperature": 0.5,
        "gen_ai.request.seed": "7",
        "gen_ai.response.id": answer.id,
        "gen_ai.response.finish_reasons": ["length", "length"],
        "gen_ai.usage.input_tokens": answer.usage.prompt_tokens,
        "gen_ai.usage.output_tokens": 6,
        "http.response.status_code": 200,
        "segue.end.reason": "complete",
    }
    assert attributes.items() >= expected.items()


async def test_a_refused_call_says_why(
    gateway: RunningGateway, stub: SchedulerStub, receiver: OtlpReceiver, tracer: Tracer
) -> None:
    stub.reject = scheduler_pb2.Rejected(
        code=scheduler_pb2.REJECT_CODE_QUEUE_FULL, message="the queue is full", retry_after_ms=1000
    )
    with pytest.raises(openai.RateLimitError):
        await ask(gateway)
    span = the_span(receiver, tracer)
    assert span.attributes["segue.end.reason"] == "refused"
    assert span.attributes["segue.end.message"] == "the queue is full"
    assert span.attributes["error.type"] == "queue_full"
    assert span.attributes["http.response.status_code"] == 429
    assert span.error is None  # the client's doing, by the conventions for servers


async def test_a_bad_body_has_a_span_too(
    gateway: RunningGateway, receiver: OtlpReceiver, tracer: Tracer
) -> None:
    assert (await gateway.http.post("/v1/completions", content=b"{")).status_code == 400
    span = the_span(receiver, tracer)
    assert span.attributes["http.response.status_code"] == 400
    assert span.attributes["segue.end.reason"] == "refused"


async def test_a_client_that_leaves_ends_the_span(
    gateway: RunningGateway, stub: SchedulerStub, receiver: OtlpReceiver, tracer: Tracer
) -> None:
    stub.is_running = False
    stream = await ask(gateway, stream=True)
    await stream.close()
    async with asyncio.timeout(5):
        async with stub.changed:
            await stub.changed.wait_for(lambda: stub.aborts)
    span = the_span(receiver, tracer)
    assert span.attributes["segue.end.reason"] == "client_left"
    assert span.attributes["gen_ai.response.finish_reasons"] == ["none"]


async def test_a_resumed_stream_links_to_the_requests_spans(
    gateway: RunningGateway, stub: SchedulerStub, receiver: OtlpReceiver, tracer: Tracer
) -> None:
    """They are the scheduler's, whose ids follow from the submission."""
    stub.is_running = False
    stream = await ask(gateway, stream=True)
    (submission,) = stub.submits[0].submissions
    resumed = asyncio.create_task(gateway.http.get(f"/v1/streams/{submission.group_id}"))
    stub.is_running = True
    await resumed
    await stream.close()
    assert tracer.flush(5.0)
    (span,) = [s for s in receiver.store.all() if s.attributes["http.request.method"] == "GET"]
    parent = parse_traceparent(submission.traceparent)
    assert parent is not None
    context = request_context(parent, submission.request_id)
    assert [(link.trace_id, link.span_id) for link in span.links] == [
        (f"{context.trace_id:032x}", f"{context.span_id:016x}")
    ]


async def test_what_is_no_call_has_no_span(
    gateway: RunningGateway, receiver: OtlpReceiver, tracer: Tracer
) -> None:
    await gateway.http.get("/health")
    await gateway.http.get("/v1/models")
    assert tracer.flush(5.0)
    assert receiver.store.all() == []
