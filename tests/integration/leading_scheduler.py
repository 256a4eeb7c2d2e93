"""A scheduler that leads, over real gRPC, with its state in memory."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from scheduler_svc.config import SchedulerServiceConfig
from scheduler_svc.core.engine_core import EngineCore
from scheduler_svc.core.events import ExecutorRegistered
from scheduler_svc.executor_client import Executors
from scheduler_svc.loop import EngineLoop, Envelope
from scheduler_svc.policies import load_policy
from scheduler_svc.service import SchedulerService
from scheduler_svc.sessions import Sessions
from scheduler_svc.store.memory_store import MemoryState, MemoryStore
from scheduler_svc.store.state_store import LeaseAcquired, LeaseCandidate
from segue.grpc_server import bind, make_server
from segue.wire import WireCodec

CONFIG = replace(SchedulerServiceConfig(), deployment="prod", heartbeat_s=0.02, lease_ttl_s=30.0)


@asynccontextmanager
async def running_scheduler(
    executor_address: str, config: SchedulerServiceConfig = CONFIG
) -> AsyncIterator[str]:
    """Its address."""
    store = MemoryStore(MemoryState(lambda: time.time_ns() // 1_000_000))
    acquired = await store.acquire(LeaseCandidate("s0", "leader", "", 30_000))
    assert isinstance(acquired, LeaseAcquired)
    core = EngineCore(config.engine_config(), WireCodec(), load_policy(config.policy))
    core.lead(acquired.epoch, "leader", acquired.last_commit)
    sessions, executors = Sessions(), Executors(config)
    loop = EngineLoop(core, store, sessions, executors, config)
    executors.start(core, lambda event: loop.post(Envelope(event)), loop.report_higher_epoch)
    loop.post(Envelope(ExecutorRegistered("e0", executor_address)))
    lease: Any = SimpleNamespace(leader_address="")
    service = SchedulerService(config, sessions, lease)
    service.loop = loop
    server = make_server()
    service.register(server)
    port = bind(server, "127.0.0.1:0")
    await server.start()
    running = asyncio.create_task(loop.run())
    try:
        yield f"127.0.0.1:{port}"
    finally:
        sessions.end_all()
        loop.stop()
        await running
        await server.stop(0.1)
