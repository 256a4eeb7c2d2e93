"""Configuration of the gateway service, from flags and SEGUE_<FLAG>.

Knows nothing about how it is used. Invariant: frozen; read once, at start.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from segue.config import MAX_PORT
from segue.grpc_tls import TlsConfig


@dataclass(slots=True, frozen=True)
class GatewayConfig(TlsConfig):
    """The OpenAI-compatible gateway. Flags are these names with dashes."""

    model: Path = field(metadata={"help": "model directory (tokenizer, template, limits)"})
    host: str = field(default="127.0.0.1", metadata={"help": "address to serve HTTP on"})
    port: int = field(
        default=8000, metadata={"help": "port to serve HTTP on; 0: any free one", "most": MAX_PORT}
    )
    gateway_id: str = field(
        default="g0", metadata={"help": "stable identity of this gateway at the scheduler"}
    )
    workers: int = field(
        default=1, metadata={"help": "processes that share the port, each a gateway of its own"}
    )
    metrics_ports: tuple[str, ...] = field(
        default=(),
        metadata={"help": "port of each worker alone, for its /metrics; one worker needs none"},
    )
    reuse_port: bool = field(
        default=False, metadata={"help": "others serve on the port too; --workers sets it"}
    )
    schedulers: tuple[str, ...] = field(
        default=("127.0.0.1:50051",),
        metadata={"help": "scheduler addresses, comma separated; a name may have several"},
    )
    served_model_name: tuple[str, ...] = field(
        default=(), metadata={"help": "names of the model in the API; default: its directory's"}
    )
    max_model_len: int = field(
        default=0, metadata={"help": "tokens in prompt and output; 0: the model's own limit"}
    )
    lease_ttl_s: float = field(
        default=3.0, metadata={"help": "a scheduler that is silent for longer is left"}
    )
    heartbeat_s: float = field(
        default=0.5, metadata={"help": "between two signs of life", "least": 0.01}
    )
    scheduler_wait_s: float = field(
        default=30.0, metadata={"help": "a new request waits for a scheduler; then 503"}
    )
    stall_s: float = field(
        default=10.0, metadata={"help": "not ready when nothing has moved for longer"}
    )
    drain_grace_s: float = field(
        default=30.0, metadata={"help": "streams may finish for, after SIGTERM"}
    )
    max_body_bytes: int = field(
        default=8 << 20, metadata={"help": "a larger request body is refused"}
    )

    def __post_init__(self) -> None:
        TlsConfig.__post_init__(self)
        if self.workers < 1:
            raise ValueError("--workers: at least 1 is needed")
        if self.metrics_ports and len(self.metrics_ports) != self.workers:
            raise ValueError(f"--metrics-ports: {self.workers} are needed, one for each worker")
        if not all(port.isdigit() and 0 < int(port) < 65536 for port in self.metrics_ports):
            raise ValueError(f"--metrics-ports: {','.join(self.metrics_ports)} are no ports")

    @property
    def model_names(self) -> tuple[str, ...]:
        return self.served_model_name or (self.model.resolve().name,)
