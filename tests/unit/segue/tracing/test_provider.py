"""What the environment asks for: nothing, an exporter, or something that we do not have."""

from __future__ import annotations

import subprocess
import sys

import pytest

from segue.tracing.provider import exporter_name, open_tracer
from segue.tracing.tracing_error import TracingError

ENDPOINT = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:4317"}


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, ""),
        (ENDPOINT, "otlp"),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://127.0.0.1:1"}, "otlp"),
        ({"OTEL_TRACES_EXPORTER": "otlp"}, "otlp"),
        ({"OTEL_TRACES_EXPORTER": "console"}, "console"),
        (ENDPOINT | {"OTEL_TRACES_EXPORTER": "none"}, ""),
        (ENDPOINT | {"OTEL_SDK_DISABLED": "True"}, ""),
    ],
)
def test_an_exporter_is_used_where_one_is_asked_for(environ: dict[str, str], expected: str) -> None:
    assert exporter_name(environ) == expected


def test_an_exporter_that_we_do_not_have_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "zipkin")
    with pytest.raises(TracingError, match="zipkin"):
        open_tracer("segue-test", "t0")


def test_a_protocol_that_we_do_not_have_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "otlp")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "http/json")
    with pytest.raises(TracingError, match="http/json"):
        open_tracer("segue-test", "t0")


@pytest.mark.slow
def test_without_an_exporter_no_tracer_is_even_loaded() -> None:
    code = (
        "import sys, gateway_svc.__main__, scheduler_svc.__main__\n"
        "from segue.tracing.provider import open_tracer\n"
        "assert open_tracer('segue-test', 't0') is None\n"
        "sys.exit('segue.tracing.tracer' in sys.modules)"  # redis-py imports the SDK by itself
    )
    environ = {"PATH": "/usr/bin", "OMP_NUM_THREADS": "1"}
    result = subprocess.run([sys.executable, "-c", code], env=environ, timeout=60, check=False)
    assert result.returncode == 0
