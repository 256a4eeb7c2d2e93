"""A running `segue serve` with the hand model, for all tests of a module."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from segue.model_files.hand import write_hand_model
from tests.chaos.step_gate import StepGate
from tests.served import Served


@pytest.fixture(scope="session")
def hand_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / "hand"
    write_hand_model(path)
    return path


@pytest.fixture(scope="module")
def gate(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StepGate]:
    """Before the steps of the executors that a module starts with `gate.environ`."""
    gate = StepGate(tmp_path_factory.mktemp("gate") / "steps")
    yield gate
    gate.remove()


@pytest.fixture(scope="module")
def served(hand_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    running = Served(hand_model, tmp_path_factory.mktemp("serve") / "state")
    yield running
    running.stop()
    print(running.log()[-20_000:])  # shown where the test failed
