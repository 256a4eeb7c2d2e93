"""An OTLP collector over gRPC that takes everything and reads nothing; a process of its own.

`python -m tests.bench.swallowing_collector` prints its port. For benches: what a collector does
with spans is not the services' cost. Knows gRPC and no message. Invariant: every call succeeds.
"""

from __future__ import annotations

import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc


class _Swallow(grpc.GenericRpcHandler):
    def service(self, handler_call_details: Any) -> Any:
        return grpc.unary_unary_rpc_method_handler(lambda request, context: b"")


def main() -> None:
    """Until standard input ends: whoever started it has ended then."""
    server = grpc.server(ThreadPoolExecutor(max_workers=2))
    server.add_generic_rpc_handlers((_Swallow(),))
    print(server.add_insecure_port("127.0.0.1:0"), flush=True)
    server.start()
    threading.Thread(target=sys.stdin.read).run()
    server.stop(0)


if __name__ == "__main__":
    main()
