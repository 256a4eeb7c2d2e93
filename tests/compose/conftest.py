"""One deployment for all tests of this folder; where there can be no engine, all are skipped."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from segue.serve_plan import free_ports
from tests.compose.deployment import Deployment
from tests.compose.engine import STAND_INS, Engine, NoEngine, running_engine
from tests.compose_file import read_env_file


@pytest.fixture(scope="session")
def engine() -> Iterator[Engine]:
    with ExitStack() as stack:
        try:
            found = stack.enter_context(running_engine())
        except NoEngine as error:
            pytest.skip(str(error))
        yield found


@pytest.fixture(scope="session")
def deployment(engine: Engine) -> Iterator[Deployment]:
    settings = read_env_file()
    images = engine.base_images({name: settings[name] for name in STAND_INS})
    ports = [name for name in settings if name.endswith("_PORT")]
    environ = {
        **images,
        **dict(zip(ports, map(str, free_ports(len(ports))), strict=True)),
        "SEGUE_TAG": "test",
        "HEALTH_INTERVAL": "4s",
        "COMPILER": "",  # torch's kernels say the same, and no compiler has to be installed
        # The stand-in of Python's image has the machine's own torch.
        **({"TORCH_INDEX_URL": ""} if images is STAND_INS else {}),
    }
    running = Deployment(engine, environ, settings["MODEL_NAME"])
    try:
        running.bring_up()
        yield running
    finally:
        print(running.compose("logs", "--no-color", "--tail", "60"))  # shown where a test failed
        running.remove()
