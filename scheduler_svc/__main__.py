"""`python -m scheduler_svc`: builds the real store, lease, loop and server, and runs them.

The only file that knows all parts. Invariant: who is no longer the leader ends this process with
exit code 1, and is started again by whoever watches it.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import signal
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import uvloop

from scheduler_svc.check_flags import read_flags
from scheduler_svc.config import SchedulerServiceConfig
from scheduler_svc.core.engine_core import EngineCore
from scheduler_svc.core.events import ExecutorRegistered
from scheduler_svc.executor_client import Executors
from scheduler_svc.lease import LeaseKeeper
from scheduler_svc.live_settings import LiveConfiguration
from scheduler_svc.loop import Deposed, EngineLoop, Envelope
from scheduler_svc.loop_observer import LoopObserver
from scheduler_svc.metrics import LeaderReadings, serve_metrics
from scheduler_svc.policies import load_policy
from scheduler_svc.readiness import Readiness
from scheduler_svc.service import SchedulerService
from scheduler_svc.sessions import Sessions
from scheduler_svc.store.redis_store import RedisStore, open_store
from scheduler_svc.store.state_store import (
    SCHEMA_VERSION,
    StoreError,
    StoreUnavailable,
    StoreUnsuitable,
)
from scheduler_svc.timed_codec import TimedCodec
from scheduler_svc.tracing.loop_tracer import LoopTracer
from scheduler_svc.tracing.step_spans import StepTracing
from segue.grpc_server import SCHEDULER_SERVICE, Health, bind, make_server
from segue.tracing import names
from segue.tracing.provider import open_tracer
from segue.tracing.tracing_error import TracingError

if TYPE_CHECKING:
    from segue.tracing.tracer import Tracer

log = logging.getLogger("segue.scheduler")
STOP_GRACE_S = 2.0
STORE_RETRY_S = 0.5


async def wait_for_store(store: RedisStore, lease: LeaseKeeper) -> None:
    """Until it answers. Raises StoreUnsuitable where it can not keep what we promise."""
    while True:
        try:
            warnings = await store.check_server()
            break
        except StoreUnavailable as error:
            if not lease.is_store_down:
                log.warning("redis is not available, it is waited for: %s", error)
            lease.is_store_down = True
            await asyncio.sleep(STORE_RETRY_S)
    for warning in warnings:
        log.warning("%s", warning)


@dataclass(slots=True, frozen=True)
class Parts:
    """What is there before this process leads, and stays when it does not any more."""

    store: RedisStore
    lease: LeaseKeeper
    service: SchedulerService
    sessions: Sessions
    tracer: Tracer | None

    def observer(self, core: EngineCore, config: SchedulerServiceConfig) -> LoopObserver:
        if self.tracer is None:
            return LoopObserver(core)
        return LoopTracer(core, self.tracer, StepTracing.of(config))


async def lead(config: SchedulerServiceConfig, parts: Parts, stopping: asyncio.Event) -> None:
    """Campaign, load, lead until stopped; raises Deposed when another leads."""
    store, service, sessions = parts.store, parts.service, parts.sessions
    await wait_for_store(store, parts.lease)
    acquired, leader_id = await parts.lease.campaign()
    started = time.perf_counter()
    codec = TimedCodec()
    make_policy = load_policy(config.policy)
    core = EngineCore(config.engine_config(), codec, make_policy, LiveConfiguration(config))
    loaded = await store.load()
    if loaded.is_torn:
        log.error("redis holds a commit that was begun and never done: all state is discarded")
        core.discard(loaded.rows)
    elif loaded.schema_version != SCHEMA_VERSION:
        log.warning("rows of schema version %d: requests are kept", loaded.schema_version)
        core.restore_requests(loaded.rows)
    elif loaded.config_digest in ("", config.digest()):
        core.restore(loaded.rows)
    else:
        log.warning("configuration changed: %s, was %s", config.digest(), loaded.config_digest)
        core.restore_requests(loaded.rows)
    core.lead(acquired.epoch, leader_id, loaded.last_commit)
    executors = Executors(config)
    observer = parts.observer(core, config)
    loop = EngineLoop(core, store, sessions, executors, config, observer)
    executors.start(core, lambda event: loop.post(Envelope(event)), loop.report_higher_epoch)
    for item in config.executors:
        executor_id, _, address = item.partition("=")
        loop.post(Envelope(ExecutorRegistered(executor_id, address)))
    loop.meters.read = LeaderReadings(loop, executors, codec).read
    gc.collect()
    gc.freeze()  # what is there now stays: going through it in the middle of a step takes 20 ms
    service.loop = loop
    log.info(
        "leads: epoch %d, %d requests, %d lanes, loaded in %.0f ms",
        acquired.epoch,
        len(core.state.requests),
        len(core.state.lanes),
        (time.perf_counter() - started) * 1e3,
    )
    running = asyncio.create_task(loop.run())
    waiting = asyncio.create_task(stopping.wait())
    await asyncio.wait({running, waiting}, return_when=asyncio.FIRST_COMPLETED)
    service.loop = None
    loop.stop()
    waiting.cancel()
    await running
    sessions.end_all()
    epoch, leader_id = core.leader
    await store.release(epoch, leader_id)


async def serve(config: SchedulerServiceConfig, tracer: Tracer | None) -> int:
    store = open_store(config.redis_url, config.deployment, config.durability, config.digest())
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    address = config.advertise or config.listen
    lease = LeaseKeeper(
        store, config.scheduler_id, address, config.lease_ttl_s, has_peers=config.has_peers
    )
    sessions = Sessions()
    service = SchedulerService(config, sessions, lease)
    server = make_server()
    service.register(server)
    health = Health(server, [SCHEDULER_SERVICE])
    try:
        port = bind(server, config.listen, config.tls)
        await health.listen(config.health_listen)
        serve_metrics(config, lambda: service.loop)
    except OSError as error:
        log.error("%s", error)
        return 1
    await server.start()
    readiness = Readiness(lease, lambda: service.loop, config.stall_s)
    probes = asyncio.create_task(
        health.keep(lambda: True, readiness.is_ready, config.heartbeat_s), name="health"
    )
    log.info("scheduler %s listens on port %d", config.scheduler_id, port)
    code = 0
    parts = Parts(store, lease, service, sessions, tracer)
    campaign = asyncio.create_task(lead(config, parts, stopping))
    stop = asyncio.create_task(stopping.wait())
    await asyncio.wait({campaign, stop}, return_when=asyncio.FIRST_COMPLETED)
    if service.loop is None and not campaign.done():
        campaign.cancel()  # still a standby: nothing to hand back
    try:
        await campaign
    except asyncio.CancelledError:
        pass
    except StoreUnsuitable as error:
        log.error("%s", error)
        code = 1
    except (Deposed, StoreError) as error:
        log.error("ends, since it does not lead any more: %s", error)
        code = 1
    except Exception:
        await server.stop(None)  # what it says when it is torn down would be the last line
        raise
    stop.cancel()
    probes.cancel()
    await health.set_ready(is_ready=False)
    sessions.end_all()
    await server.stop(STOP_GRACE_S)
    await health.stop()
    await store.close()
    if tracer is not None:
        tracer.close()
    return code


def main() -> int:
    config = read_flags()
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s", stream=sys.stderr)
    try:
        tracer = open_tracer(names.SERVICE_SCHEDULER, config.scheduler_id)
    except TracingError as error:
        print(f"scheduler_svc: error: {error}", file=sys.stderr)
        return 2
    return uvloop.run(serve(config, tracer))


if __name__ == "__main__":
    sys.exit(main())
