"""Real certificates for tests, made by the openssl command.

Knows no service. Invariant: each authority is its own; nothing is kept outside of its directory.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from segue.grpc_tls import TlsFiles

NEW_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")


class Authority:
    """Signs certificates for DNS names. `issue` again with one name renews its files in place."""

    def __init__(self, directory: Path) -> None:
        if shutil.which("openssl") is None:
            pytest.skip("no openssl here: no certificates can be made")
        directory.mkdir(parents=True, exist_ok=True)
        self._directory = directory
        self._openssl("req", "-x509", *NEW_KEY, "-subj", "/CN=tests", "-days", "1", stem="ca")

    def issue(self, name: str) -> TlsFiles:
        subject = ("-subj", f"/CN={name}", "-addext", f"subjectAltName=DNS:{name},IP:127.0.0.1")
        ca = ("-CA", str(self._path("ca.crt")), "-CAkey", str(self._path("ca.key")))
        self._openssl("req", "-x509", *NEW_KEY, *subject, *ca, "-days", "1", stem=name)
        return TlsFiles(self._path(f"{name}.crt"), self._path(f"{name}.key"), self._path("ca.crt"))

    def _path(self, name: str) -> Path:
        return self._directory / name

    def _openssl(self, *arguments: str, stem: str) -> None:
        files = ("-keyout", str(self._path(f"{stem}.key")), "-out", str(self._path(f"{stem}.crt")))
        done = subprocess.run(
            ["openssl", *arguments, *files], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
