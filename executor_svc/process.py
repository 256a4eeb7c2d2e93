"""The executor process: loads the model, serves Execute, registers itself, until SIGTERM.

The only file of the service that builds real things. Invariant: it serves before it registers, so
a scheduler that dials back finds somebody.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import secrets
import signal
import sys
import time
from typing import TYPE_CHECKING

import uvloop

from executor_svc.config import ExecutorServiceConfig
from executor_svc.load_progress import LoadProgress
from executor_svc.metrics import ExecutorMetrics, serve_metrics
from executor_svc.model_loader import LoadOptions, ModelError, load_model_runner
from executor_svc.model_runner import ModelRunner
from executor_svc.scheduler_client import Announcement, Registration
from executor_svc.service import ExecutorIdentity, ExecutorService
from executor_svc.step_faults import StepFaults
from executor_svc.step_spans import StepSpans
from executor_svc.step_worker import StepWorker
from segue.admin_client import AdminClient, AdminError
from segue.grpc_server import EXECUTOR_SERVICE, Health, bind, make_server
from segue.model_files.model_directory import ModelDirectory, ModelDirectoryError
from segue.tracing import names
from segue.tracing.provider import open_tracer
from segue.tracing.tracing_error import TracingError

if TYPE_CHECKING:
    from segue.tracing.tracer import Tracer

log = logging.getLogger("segue.executor")
STOP_GRACE_S = 2.0
DRAIN_CALL_S = 1.0
DRAIN_POLL_S = 0.05


def run(config: ExecutorServiceConfig) -> None:
    """Until SIGTERM or SIGINT; leaves with one line and an exit code where it can not serve."""
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    try:
        runner = _load(config)
        model_digest = ModelDirectory.load(config.model).fingerprint(config.quantization)
        tracer = open_tracer(names.SERVICE_EXECUTOR, config.executor_id)
    except (ModelError, ModelDirectoryError, TracingError) as error:
        sys.exit(f"executor_svc: error: {error}")
    gc.collect()
    gc.freeze()  # what is loaded stays: going through it in the middle of a step takes 80 ms
    try:
        uvloop.run(serve(config, runner, model_digest, tracer))
    except OSError as error:
        sys.exit(f"executor_svc: error: {error}")
    if tracer is not None:
        tracer.close()


def _load(config: ExecutorServiceConfig) -> ModelRunner:
    options = LoadOptions(
        dtype=config.dtype,
        block_size=config.block_size,
        kv_cache_bytes=config.kv_cache_bytes,
        num_blocks=config.num_blocks or None,
        num_cpu_blocks=config.num_cpu_blocks,
        swap_space_bytes=config.swap_space_bytes,
        max_model_len=config.max_model_len,
        num_threads=config.num_threads,
        populates_cache=config.populate_kv_cache,
        device=config.device,
        gpu_memory_utilization=config.gpu_memory_utilization,
        is_deterministic=config.deterministic,
        load_format=config.load_format,
        quantization=config.quantization,
        speculative_method=config.speculative_method,
        draft_model=config.draft_model,
    )
    with LoadProgress(config.model) as progress:
        return load_model_runner(config.model, options, progress)


async def serve(
    config: ExecutorServiceConfig, runner: ModelRunner, model_digest: str, tracer: Tracer | None
) -> None:
    """Until SIGTERM or SIGINT."""
    # The time comes first, so that of two processes with one id the later one sorts higher (H31).
    incarnation_id = f"{time.time_ns():020d}-{secrets.token_hex(4)}"
    identity = ExecutorIdentity(
        config.executor_id, incarnation_id, runner.capacity, model_digest, config.deployment
    )
    spans = None
    if tracer is not None:
        slow_step_ns = config.trace_slow_step_ms * 1_000_000
        spans = StepSpans(tracer, runner, config.executor_id, slow_step_ns)
    faults = StepFaults(config.fault_step_delay_ms / 1000, config.fault_step_pipe)
    worker = StepWorker(runner, faults.before_step, spans)
    service = ExecutorService(worker, identity)
    server = make_server()
    service.add_to(server)
    health = Health(server, [EXECUTOR_SERVICE])
    host = config.listen.rpartition(":")[0]
    port = bind(server, config.listen, config.tls)
    await health.listen(config.health_listen)
    await server.start()
    log.info("%s (%s) on %s:%d", config.executor_id, runner.capacity, host, port)

    registration = Registration(
        config.schedulers,
        Announcement(config.executor_id, incarnation_id, config.advertise or f"{host}:{port}"),
        epoch_seen=lambda: service.ledger.epoch_seen,
        heartbeat_s=config.heartbeat_s,
        tls=config.tls,
    )
    metrics = ExecutorMetrics(config.executor_id, runner, worker, service)
    stop_metrics = (
        serve_metrics(metrics, host, config.metrics_port) if config.metrics_port else None
    )
    async with asyncio.TaskGroup() as group:  # one of them that fails ends the process, loudly
        tasks = [
            group.create_task(registration.run()),
            group.create_task(service.send_alive(config.heartbeat_s)),
            group.create_task(_keep_health(health, service, config)),
        ]
        await _until_signal()
        await _drain(config, service)
        for task in tasks:
            task.cancel()

    await health.set_ready(is_ready=False)
    service.stop("the executor is stopping")
    await server.stop(STOP_GRACE_S)
    await health.stop()
    worker.close()
    if stop_metrics is not None:
        stop_metrics()


async def _keep_health(
    health: Health, service: ExecutorService, config: ExecutorServiceConfig
) -> None:
    """Ready: a scheduler can send steps. Not alive: a step hangs, on a device that hangs say."""
    await health.keep(
        lambda: not service.is_hung(config.hang_s), lambda: service.is_led, config.heartbeat_s
    )


async def _drain(config: ExecutorServiceConfig, service: ExecutorService) -> None:
    """Have the requests placed elsewhere at once, and tell what was computed of them till then."""
    if not service.is_led:
        return
    try:
        async with asyncio.timeout(config.drain_grace_s):
            admin = AdminClient(config.schedulers, DRAIN_CALL_S, config.tls)
            num_moved = await admin.drain(config.executor_id)
            log.info("stopping; %d requests go elsewhere", num_moved)
            # A step that was sent before the answer may come after it.
            num_quiet = 0
            while num_quiet < 2:
                await asyncio.sleep(DRAIN_POLL_S)
                num_quiet = num_quiet + 1 if service.is_idle else 0
    except AdminError as error:
        log.warning("stopping, and not drained: %s", error)
    except TimeoutError:
        log.warning("stopping in the middle of a step")


async def _until_signal() -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    await stop.wait()
