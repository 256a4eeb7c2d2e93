"""How every process of ours serves and dials gRPC: one set of options, health, reflection.

Knows no service and no message of ours but the path of Execute. Invariant: both ends have the same
limits, so what one may send the other may receive.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

import grpc
from google.protobuf.message import Message
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

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
    # A channel opened anew must not inherit the back-off of an earlier one.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_http_proxy", 0),
    ("grpc.enable_retries", 0),  # who repeats what is decided by the protocol
]


def make_server() -> grpc.aio.Server:
    return grpc.aio.server(options=_SERVER_OPTIONS)


def bind(server: grpc.aio.Server, address: str) -> int:
    """The port that is served; OSError if it is taken."""
    try:
        port = server.add_insecure_port(address)
    except RuntimeError as error:
        raise OSError(f"cannot listen on {address}: {error}") from error
    if port == 0:
        raise OSError(f"cannot listen on {address}")
    return port


class Health:
    """The standard health service, with a status for each service name and "" for the process."""

    def __init__(self, server: grpc.aio.Server, service_names: Iterable[str]) -> None:
        self._servicer: Any = cast(Any, health).aio.HealthServicer()  # the stubs lack it
        self._service_names = tuple(service_names)
        cast(Any, health_pb2_grpc).add_HealthServicer_to_server(self._servicer, server)
        names = (*self._service_names, health.SERVICE_NAME, reflection.SERVICE_NAME)
        reflection.enable_server_reflection(names, server)

    async def set(self, service_name: str, *, is_serving: bool) -> None:
        status = health_pb2.HealthCheckResponse.ServingStatus
        await self._servicer.set(service_name, status.SERVING if is_serving else status.NOT_SERVING)

    async def set_all(self, *, is_serving: bool) -> None:
        for service_name in ("", *self._service_names):
            await self.set(service_name, is_serving=is_serving)


def open_channel(address: str) -> grpc.aio.Channel:
    return grpc.aio.insecure_channel(address, options=_CHANNEL_OPTIONS)


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
