"""What the doctor says of a port, a model, a disk and a clock, whole and broken."""

from __future__ import annotations

import shutil
import socket
from pathlib import Path
from typing import NamedTuple

import pytest

from segue.doctor import machine
from segue.doctor.finding import Finding, Level
from segue.doctor.services import compiler_finding, gpu_finding
from segue.model_files.hand import write_hand_model

SEEN = {
    "torch": "2.13.0",
    "gpus": ["H200"],
    "has_nvidia_device": True,
    "has_triton": True,
    "compiler": "/usr/bin/g++",
    "library": "/cache/k.so",
    "build_module": "kernels.native",
}


class Usage(NamedTuple):
    total: int
    used: int
    free: int


def says(finding: Finding, level: Level, *parts: str) -> bool:
    assert finding.level is level, finding
    assert all(part in str(finding) for part in parts), finding
    return True


def test_a_port_that_is_taken_fails_and_names_the_flag() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        found = machine.check_ports("127.0.0.1", port, 1, None)
        assert says(found, Level.FAIL, str(port), "--port")
        ours = machine.check_ports("127.0.0.1", port, 1, f"http://127.0.0.1:{port}")
        assert says(ours, Level.OK, "segue serve")
    assert says(machine.check_ports("127.0.0.1", port, 1, None), Level.OK, "free")


def test_a_port_that_is_none_and_an_address_of_others_fail() -> None:
    assert says(machine.check_ports("127.0.0.1", 65535, 2, None), Level.FAIL, "none above 65535")
    found = machine.check_ports("203.0.113.5", 1, 1, None)
    assert says(found, Level.FAIL, "can not be used", "--host")


def test_a_model_directory_is_read(tmp_path: Path) -> None:
    assert says(machine.check_model(tmp_path, tmp_path), Level.FAIL, "config.json")
    write_hand_model(tmp_path / "hand")
    assert says(machine.check_model(tmp_path / "hand", tmp_path), Level.OK, "hand")
    config = (tmp_path / "hand" / "config.json").read_text()
    (tmp_path / "hand" / "config.json").write_text(config.replace('"segue_hand"', '"llama"'))
    found = machine.check_model(tmp_path / "hand", tmp_path)
    assert says(found, Level.FAIL, "no *.safetensors")


def test_a_gguf_file_is_known_by_its_first_bytes(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(b"<html>")
    assert says(machine.check_model(path, tmp_path), Level.FAIL, "no GGUF file")
    path.write_bytes(b"GGUF\0\0")
    assert says(machine.check_model(path, tmp_path), Level.OK)


def test_the_demo_model_that_is_not_there_is_a_warning(tmp_path: Path) -> None:
    found = machine.check_model(None, tmp_path / "nothing")
    assert says(found, Level.WARN, "segue model fetch")


@pytest.mark.parametrize(
    ("free", "level"), [(1 << 40, Level.OK), (1 << 30, Level.WARN), (1 << 20, Level.FAIL)]
)
def test_a_full_disk(monkeypatch: pytest.MonkeyPatch, free: int, level: Level) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(1 << 41, 0, free))
    assert says(machine.check_disk(Path("/nowhere/at/all")), level, "GiB are free at /")


def test_a_clock_that_is_wrong() -> None:
    assert says(machine.check_clock(None), Level.OK)
    assert says(machine.check_clock(1000.0, 1000.4), Level.OK, "0.4 s ahead of")
    assert says(machine.check_clock(1000.0, 980.0), Level.WARN, "20.0 s behind", "NTP")
    assert says(machine.check_clock(None, 0.0), Level.WARN, "behind the newest file")


def test_gpus() -> None:
    assert says(gpu_finding(SEEN), Level.OK, "H200")
    assert says(gpu_finding(SEEN | {"has_triton": False}), Level.WARN, "segue[gpu]")
    assert says(gpu_finding(SEEN | {"gpus": []}), Level.WARN, "CUDA build")
    assert says(gpu_finding(SEEN | {"gpus": [], "has_nvidia_device": False}), Level.OK, "none")


def test_compilers() -> None:
    assert says(compiler_finding(SEEN), Level.OK, "/cache/k.so")
    assert says(compiler_finding(SEEN | {"compiler": None}), Level.WARN, "install g++")
    found = compiler_finding(SEEN | {"library": None})
    assert says(found, Level.WARN, "python -m kernels.native")
