"""`python -m segue.health_check TARGET`: exit code 0 where a service of ours says that it is well.

For the health checks of containers, which run inside them. Knows HTTP's status codes and gRPC's
standard health service, and no service of ours. Invariant: it never waits for longer than its time,
and what is not a clear yes is a no, with one line on stderr that says why.

    http://127.0.0.1:8000/ready                    200 is a yes
    127.0.0.1:50051/segue.v1.SchedulerService      SERVING is a yes; without a name: the process
"""

from __future__ import annotations

import argparse
import http.client
import sys
from collections.abc import Sequence
from typing import Any, cast
from urllib.parse import urlsplit

TIMEOUT_S = 5.0


class NotWell(Exception):
    """The message is one readable line."""


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="segue.health_check", description="0: it is well")
    parser.add_argument("target", help="http://HOST:PORT/PATH, or HOST:PORT/GRPC-SERVICE")
    target = parser.parse_args(argv).target
    try:
        if target.startswith("http://"):
            check_http(target)
        else:
            check_grpc(*_address_and_service(target))
    except NotWell as error:
        print(f"{target}: {error}", file=sys.stderr)
        return 1
    return 0


def check_http(url: str) -> None:
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.netloc, timeout=TIMEOUT_S)
    try:
        connection.request("GET", parts.path or "/")
        response = connection.getresponse()
        body = response.read(1000).decode(errors="replace")
    except (OSError, http.client.HTTPException) as error:
        raise NotWell(str(error)) from error
    finally:
        connection.close()
    if response.status != 200:
        raise NotWell(f"{response.status} {body.strip()}")


def check_grpc(address: str, service: str) -> None:
    # Not at the head: it takes three times as long to import as everything else together.
    import grpc
    from grpc_health.v1 import health_pb2, health_pb2_grpc

    serving = health_pb2.HealthCheckResponse.SERVING
    with grpc.insecure_channel(address, options=[("grpc.enable_http_proxy", 0)]) as channel:
        stub = cast(Any, health_pb2_grpc).HealthStub(channel)  # the stubs lack its methods
        try:
            request = health_pb2.HealthCheckRequest(service=service)
            status = stub.Check(request, timeout=TIMEOUT_S).status
        except grpc.RpcError as error:
            raise NotWell(f"{error.code().name} {error.details()}") from error  # pyright: ignore
    if status != serving:
        raise NotWell(health_pb2.HealthCheckResponse.ServingStatus.Name(status))


def _address_and_service(target: str) -> tuple[str, str]:
    address, _, service = target.partition("/")
    return address, service


if __name__ == "__main__":
    sys.exit(main())
