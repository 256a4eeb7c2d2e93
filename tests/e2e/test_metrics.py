"""Every instrument of the table, asked for from real processes that have served something."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from openai import OpenAI

from segue.instruments import INSTRUMENTS, Service
from tests.metrics_page import Page, faults
from tests.served import Served, wait_until

MAX_MODEL_LEN = 512
PROCESSES = {
    Service.GATEWAY: "gateway-0",
    Service.SCHEDULER: "scheduler-0",
    Service.EXECUTOR: "executor-0",
}
PROMPT = "one two three four five six seven eight nine ten eleven twelve thirteen fourteen"


@pytest.fixture(scope="module")
def served(hand_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """The model's name in the API is the label on every page."""
    flags = ["--max-model-len", str(MAX_MODEL_LEN), "--served-model-name", "hand"]
    running = Served(hand_model, tmp_path_factory.mktemp("serve") / "state", flags)
    yield running
    running.stop()


def page_of(served: Served, service: Service) -> Page:
    return Page.parse(served.metrics_page(PROCESSES[service]))


def complete(served: Served, *, n: int = 1, max_tokens: int = 8, prompt: str = PROMPT) -> int:
    """One streamed completion; returns the tokens that its usage counts."""
    with OpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0) as client:
        stream = client.completions.create(
            model="hand",
            prompt=prompt,
            n=n,
            max_tokens=max_tokens,
            seed=1,
            extra_body={"ignore_eos": True},
            stream=True,
            stream_options={"include_usage": True},
        )
        usages = [chunk.usage for chunk in stream if chunk.usage is not None]
    assert len(usages) == 1
    return usages[0].completion_tokens


def settled(served: Served) -> Page:
    """The scheduler's page once it has nothing under way: ends are counted after their commit."""

    def read() -> Page | None:
        page = page_of(served, Service.SCHEDULER)
        under_way = page.total("vllm:num_requests_running") + page.total(
            "vllm:num_requests_waiting"
        )
        return None if under_way else page

    page = wait_until(read, "the scheduler is idle")
    assert page is not None
    return page


@pytest.mark.timeout(120)
def test_each_instrument_of_the_table_is_there(served: Served) -> None:
    """A board or a rule may name any of them: type, labels and buckets as in the table."""
    complete(served, n=2)
    settled(served)
    found = {
        service: [
            fault
            for row in INSTRUMENTS
            if row.service is service and not row.is_otlp
            for fault in faults(page_of(served, service), row, MAX_MODEL_LEN)
        ]
        for service in Service
    }
    assert found == {service: [] for service in Service}


def test_a_page_has_nothing_that_the_table_has_not(served: Served) -> None:
    names = {
        (
            row.service,
            row.page_name.removesuffix("_total") if row.kind.value == "counter" else row.name,
        )
        for row in INSTRUMENTS
    }
    extra = {
        (service, name)
        for service in Service
        for name in page_of(served, service).types
        if (service, name) not in names
    }
    assert extra == set()


def test_what_is_counted_is_what_was_served(served: Served) -> None:
    """A client's usage, the gateway's and the scheduler's counts are the same tokens."""
    before, engine_before = page_of(served, Service.GATEWAY), settled(served)
    num_tokens = complete(served, n=3, max_tokens=7)
    after, engine = page_of(served, Service.GATEWAY), settled(served)

    def gateway(name: str, **labels: str) -> float:
        return after.total(name, **labels) - before.total(name, **labels)

    def scheduler(name: str, **labels: str) -> float:
        return engine.total(name, **labels) - engine_before.total(name, **labels)

    assert num_tokens == 21
    assert gateway("vllm:request_generation_tokens_sum") == 21
    assert scheduler("vllm:generation_tokens_total") == 21
    assert gateway("vllm:request_success_total", finished_reason="length") == 3
    assert scheduler("segue:requests_finished_total", finished_reason="length") == 3
    assert gateway("vllm:time_to_first_token_seconds_count") == 3
    assert gateway("vllm:inter_token_latency_seconds_count") <= 3 * 6
    assert gateway("vllm:request_params_n_sum") == 3
    assert gateway("vllm:request_params_n_count") == 1
    assert gateway("vllm:request_params_max_tokens_sum") == 21
    assert gateway("vllm:request_max_num_generation_tokens_sum") == 7
    assert gateway("vllm:request_prompt_tokens_sum") == scheduler("vllm:prompt_tokens_total")
    for phase in ("queue", "prefill", "decode", "inference"):
        assert scheduler(f"vllm:request_{phase}_time_seconds_count") == 3
    num_prefilled = scheduler("vllm:prompt_tokens_by_source_total", source="local_compute")
    assert scheduler("vllm:iteration_tokens_total_sum") == 21 + num_prefilled


def test_a_prompt_served_before_is_a_hit(served: Served) -> None:
    prompt = f"again {PROMPT} and {PROMPT}"
    complete(served, prompt=prompt)
    before = settled(served)
    complete(served, prompt=prompt)
    after = settled(served)
    hits, queries = (
        after.total(f"vllm:prefix_cache_{name}_total")
        - before.total(f"vllm:prefix_cache_{name}_total")
        for name in ("hits", "queries")
    )
    assert 0 < hits < queries


@pytest.mark.timeout(120)
def test_counters_fall_to_zero_with_their_process_and_never_otherwise(served: Served) -> None:
    complete(served)
    settled(served)
    before = {service: page_of(served, service) for service in Service}
    old_pid = served.kill("scheduler-0")
    served.wait_restarted("scheduler-0", old_pid)

    def led() -> bool:
        try:
            page = page_of(served, Service.SCHEDULER)
            gateway = page_of(served, Service.GATEWAY)
        except OSError:
            return False
        return bool(page.total("segue:is_leader") and gateway.total("segue:gateway_is_connected"))

    wait_until(led, "it leads again")
    restarted = page_of(served, Service.SCHEDULER)
    assert restarted.total("segue:epoch") > before[Service.SCHEDULER].total("segue:epoch")
    for name in ("vllm:generation_tokens", "vllm:prompt_tokens", "segue:requests_finished"):
        assert before[Service.SCHEDULER].total(f"{name}_total") > 0
        assert restarted.total(f"{name}_total") == 0
    for service in (Service.GATEWAY, Service.EXECUTOR):
        earlier, later = before[service].counters(), page_of(served, service).counters()
        assert {key: value for key, value in earlier.items() if later.get(key, -1) < value} == {}
