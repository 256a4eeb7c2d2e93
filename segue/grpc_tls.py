"""Mutual TLS between the services: which files, and the credentials that gRPC makes of them.

Knows no service and no address. Invariant: all three files or none. They are read for each new
connection, so a certificate that was renewed in its place is used without a restart.

A server is known by its role, not by its address, since pods and processes come and go: the
certificate of a scheduler carries the DNS name `segue-scheduler`, that of an executor
`segue-executor`. Who dials needs a certificate too, of the same authority and any name.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import grpc

SCHEDULER_NAME = "segue-scheduler"
EXECUTOR_NAME = "segue-executor"


class TlsFileError(OSError):
    """The message is one readable line."""


@dataclass(slots=True, frozen=True)
class TlsFiles:
    """PEM files. `ca` is who signs everybody's certificates."""

    cert: Path
    key: Path
    ca: Path

    def check(self) -> None:
        """TlsFileError where a file cannot be read, or holds nothing of the kind."""
        for path in (self.cert, self.key, self.ca):
            try:
                text = path.read_bytes()
            except OSError as error:
                raise TlsFileError(f"TLS: {path}: {error.strerror}") from error
            if b"-----BEGIN" not in text:
                raise TlsFileError(f"TLS: {path} is not in PEM format")

    def server_credentials(self) -> grpc.ServerCredentials:
        renewed = cast(Callable[[], grpc.ServerCertificateConfiguration], self._renewed)
        return grpc.dynamic_ssl_server_credentials(
            self._configuration(), renewed, require_client_authentication=True
        )

    def channel_credentials(self) -> grpc.ChannelCredentials:
        return grpc.ssl_channel_credentials(
            self.ca.read_bytes(), self.key.read_bytes(), self.cert.read_bytes()
        )

    def _configuration(self) -> grpc.ServerCertificateConfiguration:
        pair = (self.key.read_bytes(), self.cert.read_bytes())
        return grpc.ssl_server_certificate_configuration([pair], self.ca.read_bytes())

    def _renewed(self) -> grpc.ServerCertificateConfiguration | None:
        """Called by gRPC for each connection that comes; None: go on with what there is."""
        try:
            return self._configuration()
        except OSError:
            return None


@dataclass(slots=True, frozen=True, kw_only=True)
class TlsConfig:
    """The flags of whoever serves or dials gRPC."""

    tls_cert: Path | None = field(
        default=None, metadata={"help": "own certificate for gRPC, PEM; without: no TLS"}
    )
    tls_key: Path | None = field(default=None, metadata={"help": "its private key"})
    tls_ca: Path | None = field(
        default=None, metadata={"help": "certificate of who signs the peers' certificates"}
    )

    def __post_init__(self) -> None:
        given = (self.tls_cert, self.tls_key, self.tls_ca)
        if any(given) and not all(given):
            raise ValueError("--tls-cert, --tls-key and --tls-ca are given together or not at all")

    @property
    def tls(self) -> TlsFiles | None:
        if self.tls_cert is None or self.tls_key is None or self.tls_ca is None:
            return None
        return TlsFiles(self.tls_cert, self.tls_key, self.tls_ca)
