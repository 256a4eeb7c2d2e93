"""How every process of ours serves and dials gRPC: one set of options, health, reflection.

Knows no service and no message of ours but the path of Execute. Invariant: both ends have the same
limits, so what one may send the other may receive.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any, cast

import grpc
from google.protobuf.message import Message
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from segue.grpc_tls import SCHEDULER_NAME, TlsFiles
from segue.v1 import executor_pb2

EXECUTOR_SERVICE = "segue.v1.ExecutorService"
SCHEDULER_SERVICE = "segue.v1.SchedulerService"
LEADER_METADATA = "segue-leader"  # in the trailer of a scheduler that does not lead: who does

MAX_MESSAGE_BYTES = 256 * 1024 * 1024
KEEPALIVE_MS = 5_000

_COMMON_OPTIONS: list[tuple[str, Any]] = [
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.keepalive_time_ms", KEEPALIVE_MS),
    ("grpc.keepalive_timeout_ms", KEEPALIVE_MS),
    ("grpc.keepalive_permit_without_calls", 1),
    # Without it a stopped peer, whose kernel still answers TCP, is noticed a minute later.
    ("grpc.http2.ping_timeout_ms", KEEPALIVE_MS),
    ("grpc.http2.max_pings_without_data", 0),
]
_SERVER_OPTIONS: list[tuple[str, Any]] = [
    *_COMMON_OPTIONS,
    ("grpc.http2.min_ping_interval_without_data_ms", KEEPALIVE_MS // 2),
    ("grpc.so_reuseport", 0),  # two processes on one port would each get half of the calls
]
_CHANNEL_OPTIONS: list[tuple[str, Any]] = [
    *_COMMON_OPTIONS,
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 300),
    # This one bounds an attempt that gets no answer, not the pause between two.
    ("grpc.min_reconnect_backoff_ms", 2_000),
    # A pod that was replaced has another address: its name is asked again each second, not each 30.
    ("grpc.dns_min_time_between_resolutions_ms", 1_000),
    # A channel opened anew must not inherit the back-off of an earlier one.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_http_proxy", 0),
    ("grpc.enable_retries", 0),  # who repeats what is decided by the protocol
]


def make_server() -> grpc.aio.Server:
    return grpc.aio.server(options=_SERVER_OPTIONS)


def bind(server: grpc.aio.Server, address: str, tls: TlsFiles | None = None) -> int:
    """The port that is served; OSError if it is taken, or a file of `tls` is no good."""
    if tls is not None:
        tls.check()
    try:
        if tls is None:
            port = server.add_insecure_port(address)
        else:
            port = server.add_secure_port(address, tls.server_credentials())
    except RuntimeError as error:
        raise OSError(f"cannot listen on {address}: {error}") from error
    if port == 0:
        raise OSError(f"cannot listen on {address}")
    return port


class Health:
    """The standard health service: two questions with different answers.

    "" is *alive*: no restart would help. The name of a service is *ready*: it is of use to others.
    """

    def __init__(self, server: grpc.aio.Server, service_names: Iterable[str]) -> None:
        self._servicer: Any = cast(Any, health).aio.HealthServicer()  # the stubs lack it
        self._service_names = tuple(service_names)
        self._plain: grpc.aio.Server | None = None
        cast(Any, health_pb2_grpc).add_HealthServicer_to_server(self._servicer, server)
        names = (*self._service_names, health.SERVICE_NAME, reflection.SERVICE_NAME)
        reflection.enable_server_reflection(names, server)

    async def listen(self, address: str) -> None:
        """Answer there too, without TLS and nothing but health: kubelet's probes know no TLS."""
        if not address:
            return
        self._plain = grpc.aio.server(options=_SERVER_OPTIONS)
        cast(Any, health_pb2_grpc).add_HealthServicer_to_server(self._servicer, self._plain)
        bind(self._plain, address)
        await self._plain.start()

    async def keep(
        self, is_alive: Callable[[], bool], is_ready: Callable[[], bool], period_s: float
    ) -> None:
        """Asks both again and again, until cancelled."""
        while True:
            await self._set("", is_serving=is_alive())
            await self.set_ready(is_ready=is_ready())
            await asyncio.sleep(period_s)

    async def set_ready(self, *, is_ready: bool) -> None:
        for service_name in self._service_names:
            await self._set(service_name, is_serving=is_ready)

    async def stop(self) -> None:
        if self._plain is not None:
            await self._plain.stop(0)

    async def _set(self, service_name: str, *, is_serving: bool) -> None:
        status = health_pb2.HealthCheckResponse.ServingStatus
        await self._servicer.set(service_name, status.SERVING if is_serving else status.NOT_SERVING)


def open_channel(
    address: str, tls: TlsFiles | None = None, server_name: str = SCHEDULER_NAME
) -> grpc.aio.Channel:
    """`server_name`: what the certificate of whoever answers must carry."""
    if tls is None:
        return grpc.aio.insecure_channel(address, options=_CHANNEL_OPTIONS)
    options = [*_CHANNEL_OPTIONS, ("grpc.ssl_target_name_override", server_name)]
    return grpc.aio.secure_channel(address, tls.channel_credentials(), options=options)


def execute_stub(channel: grpc.aio.Channel) -> grpc.aio.StreamStreamMultiCallable[Any, Any]:
    """Execute, taking messages or bytes: a step's stored bytes are sent as they are."""
    return channel.stream_stream(
        f"/{EXECUTOR_SERVICE}/Execute",
        request_serializer=_serialize,
        response_deserializer=executor_pb2.ExecuteResponse.FromString,
    )


def _serialize(message: object) -> bytes:
    if isinstance(message, bytes):
        return message
    return cast(Message, message).SerializeToString()
