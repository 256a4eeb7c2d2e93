"""The engine loop with the store in memory: what it does however many events come."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace

from scheduler_svc.config import SchedulerServiceConfig
from scheduler_svc.core.engine_core import EngineCore
from scheduler_svc.core.events import (
    PauseChanged,
    PauseState,
    RejectCode,
    Rejected,
    RequestsSubmitted,
)
from scheduler_svc.executor_client import Executors
from scheduler_svc.loop import EngineLoop, Envelope
from scheduler_svc.policies import load_policy
from scheduler_svc.sessions import Sessions
from scheduler_svc.store.memory_store import MemoryState, MemoryStore
from scheduler_svc.store.state_store import LeaseAcquired, LeaseCandidate
from segue.types import Attachment, FinishReason, SamplingParams, Submission
from segue.wire import WireCodec

CONFIG = replace(SchedulerServiceConfig(), heartbeat_s=0.02, lease_ttl_s=30.0, finished_ttl_s=0.05)


def now_ms() -> int:
    return time.time_ns() // 1_000_000


async def make_loop(config: SchedulerServiceConfig = CONFIG) -> EngineLoop:
    store = MemoryStore(MemoryState(now_ms))
    acquired = await store.acquire(LeaseCandidate("s0", "leader", "", 30_000))
    assert isinstance(acquired, LeaseAcquired)
    core = EngineCore(config.engine_config(), WireCodec(), load_policy("unified"))
    core.lead(acquired.epoch, "leader", acquired.last_commit)
    executors = Executors(config)
    loop = EngineLoop(core, store, Sessions(), executors, config)
    executors.start(core, lambda event: loop.post(Envelope(event)), loop.report_higher_epoch)
    return loop


async def test_time_passes_also_while_events_come_without_a_pause() -> None:
    """Expiry, lost executors and orphans hang on it; a busy scheduler must not forget them."""
    loop = await make_loop()
    running = asyncio.create_task(loop.run())
    params = SamplingParams(seed=0, max_tokens=1)
    ended = RequestsSubmitted(
        "g0",
        (Submission("r0", (1, 2, 3), params, now_ms()),),
        (Attachment("r0", (7,)),),
        now_ms(),
    )
    await loop.ask(ended)
    assert "r0" in loop.core.state.requests
    async with asyncio.timeout(5):
        while loop.core.state.requests:
            loop.post(Envelope(PauseChanged(PauseState.UNPAUSED)))
            await asyncio.sleep(0)
    loop.stop()
    await running


async def test_what_no_client_comes_back_for_is_aborted() -> None:
    """After `orphan_timeout_s`, and not before: until then its gateway may come back."""
    timeout_s = 0.3
    loop = await make_loop(replace(CONFIG, orphan_timeout_s=timeout_s, finished_ttl_s=60.0))
    running = asyncio.create_task(loop.run())
    submission = Submission("r0", (1, 2, 3), SamplingParams(seed=0, max_tokens=5), now_ms())
    await loop.ask(RequestsSubmitted("g0", (submission,), (Attachment("r0"),), now_ms()))
    submitted_at = time.monotonic()
    request = loop.core.state.requests["r0"]
    assert not request.is_finished
    async with asyncio.timeout(5):
        while not request.is_finished:
            await asyncio.sleep(0.01)
    assert time.monotonic() - submitted_at >= timeout_s
    assert request.finish is not None
    assert request.finish.reason is FinishReason.ABORT
    loop.stop()
    await running


async def test_what_no_executor_can_do_is_refused_in_words() -> None:
    """The core decides about adapters as vLLM does; there is no executor that could load one."""
    loop = await make_loop()
    running = asyncio.create_task(loop.run())
    params = SamplingParams(seed=0, max_tokens=1)
    submission = Submission("r0", (1, 2, 3), params, now_ms(), adapter="french")
    answer = await loop.ask(RequestsSubmitted("g0", (submission,), (Attachment("r0"),), now_ms()))
    loop.stop()
    await running
    (refused,) = [reply for reply in answer if isinstance(reply, Rejected)]
    assert refused.code is RejectCode.UNSUPPORTED
    assert refused.message == "no executor can load adapters yet"
    assert "r0" not in loop.core.state.requests
