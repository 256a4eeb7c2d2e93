"""The gateway process: reads the model directory, serves HTTP, until SIGTERM.

The only file of the service that builds real things. Invariant: on SIGTERM it first says that it is
not ready, then lets running answers finish within the grace, then closes. A stream that is cut off
then is not aborted: its client goes on through another gateway.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import signal
import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

import uvicorn
import uvloop

from gateway_svc.app import Front, make_app, make_model_cards
from gateway_svc.availability import Availability
from gateway_svc.call_factory import CallFactory
from gateway_svc.config import GatewayConfig
from gateway_svc.gateway import Gateway
from gateway_svc.leader_kv_usage import LeaderKvUsage
from gateway_svc.ledger import Ledger
from gateway_svc.metrics import GatewayMetrics
from gateway_svc.metrics_port import MetricsPort
from gateway_svc.scheduler_client import SchedulerClient, SessionSettings
from gateway_svc.tokenizer import Tokenizer
from gateway_svc.workers import listen, serve_workers
from segue.config import parse_config
from segue.grpc_tls import TlsFileError
from segue.model_files.model_directory import ModelDirectory, ModelDirectoryError
from segue.otlp_metrics import gen_ai_meter
from segue.tracing import names
from segue.tracing.provider import open_tracer
from segue.tracing.tracing_error import TracingError

if TYPE_CHECKING:
    from segue.tracing.tracer import Tracer

log = logging.getLogger("segue.gateway")

LISTEN_BACKLOG = 2048
KEEP_ALIVE_S = 75
# What still hangs after the grace is cut off.
CLOSE_GRACE_S = 1


class HttpServer(uvicorn.Server):
    """uvicorn, except that signals are ours: it would close its port at once."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def main() -> None:
    config = parse_config(GatewayConfig)
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    try:
        model = ModelDirectory.load(config.model)
        if config.workers > 1:
            sys.exit(uvloop.run(serve_workers(config, sys.argv[1:])))
        tokenizer = Tokenizer(model.tokenizer_path, model.vocab_size)
        if config.tls is not None:
            config.tls.check()
        tracer = open_tracer(names.SERVICE_GATEWAY, config.gateway_id)
        gc.collect()
        gc.freeze()  # what is loaded stays: going through it takes 15 ms of every stream's time
        uvloop.run(serve(config, model, tokenizer, tracer))
    except (ModelDirectoryError, TlsFileError, TracingError) as error:
        sys.exit(f"gateway_svc: error: {error}")
    except OSError as error:
        sys.exit(f"gateway_svc: error: {config.host}:{config.port}: {error.strerror or error}")


def build(
    config: GatewayConfig, model: ModelDirectory, tokenizer: Tokenizer
) -> tuple[Gateway, Front]:
    own_limit = config.max_model_len or model.max_model_len
    metrics = GatewayMetrics(config.model_names[0], own_limit, gen_ai_meter())
    availability = Availability(config.stall_s, time.monotonic())
    settings = SessionSettings(
        config.gateway_id, config.schedulers, config.lease_ttl_s, config.heartbeat_s, config.tls
    )
    client = SchedulerClient(settings, Ledger(tokenizer, metrics), availability, metrics)
    gateway = Gateway(client, tokenizer, config.scheduler_wait_s)

    def max_model_len() -> int:
        """The least of what was asked for, what the model can, and what the executors hold."""
        limits = [limit for limit in (own_limit, client.max_model_len) if limit]
        return min(limits, default=1)

    factory = CallFactory(model, tokenizer, config.model_names, max_model_len)
    cards = make_model_cards(config.model_names, own_limit)
    kv_usage = LeaderKvUsage(config.schedulers, config.tls)
    metrics_port = MetricsPort(config.metrics_ports, is_shared=config.reuse_port)
    return gateway, Front(gateway, factory, cards, config.max_body_bytes, kv_usage, metrics_port)


def make_http_server(front: Front, tracer: Tracer | None = None) -> HttpServer:
    return HttpServer(
        uvicorn.Config(
            make_app(front, tracer),
            log_config=None,
            access_log=False,
            lifespan="off",
            timeout_keep_alive=KEEP_ALIVE_S,
            timeout_graceful_shutdown=CLOSE_GRACE_S,
        )
    )


async def serve(
    config: GatewayConfig, model: ModelDirectory, tokenizer: Tokenizer, tracer: Tracer | None
) -> None:
    """Until SIGTERM or SIGINT; a second one does not wait for the grace."""
    with contextlib.ExitStack() as sockets:
        listeners = [
            sockets.enter_context(listen(config.host, port, shared=shared))
            for port, shared in [
                (config.port, config.reuse_port),
                *[(int(port), False) for port in config.metrics_ports],
            ]
        ]
        for listener in listeners:
            listener.listen(LISTEN_BACKLOG)
        gateway, front = build(config, model, tokenizer)
        server = make_http_server(front, tracer)
        host, port = listeners[0].getsockname()[:2]
        log.info("%s serves %s on http://%s:%d", config.gateway_id, config.model_names, host, port)
        async with asyncio.TaskGroup() as group:  # one of them that fails ends the process, loudly
            session = group.create_task(gateway.client.run())
            http = group.create_task(server.serve(sockets=listeners))
            await _stopped(gateway, config.drain_grace_s)
            gateway.is_handing_over = True
            server.should_exit = True
            await http
            await gateway.client.say_goodbye()
            session.cancel()
    gateway.client.metrics.close()
    if tracer is not None:
        tracer.close()


async def _stopped(gateway: Gateway, grace_s: float) -> None:
    """Returns when a signal came and running answers have finished, or had their time."""
    signals: asyncio.Queue[int] = asyncio.Queue()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, signals.put_nowait, number)
    await signals.get()
    gateway.is_draining = True
    log.info("stopping; running answers have %.0f s", grace_s)
    waits = {asyncio.create_task(gateway.drained()), asyncio.create_task(signals.get())}
    await asyncio.wait(waits, timeout=grace_s, return_when=asyncio.FIRST_COMPLETED)
    for task in waits:
        task.cancel()


if __name__ == "__main__":
    main()
