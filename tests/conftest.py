"""What every test may ask for: a seeded generator, a free port, a real Redis; and the time limits.

Knows nothing about services. Invariant: a random choice can be repeated from what the failure
prints.
"""

from __future__ import annotations

import os
import random
import socket
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest

from tests.redis_process import RedisProcess, redis_binary, valkey_binary

TESTS = Path(__file__).parent
# All processes have to start, and a stopped leader's lease has to run out.
LONG_TIMEOUT_S = 120
LONG_SUITES = ("e2e", "chaos", "compose")
SLOW_TIMEOUT_S = 60

# No timing is asserted: an example that takes long on a busy machine is no failure.
hypothesis.settings.register_profile(
    "house",
    deadline=None,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
    print_blob=True,
)
hypothesis.settings.load_profile("house")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("timeout") is not None:
            continue
        suite = item.path.relative_to(TESTS).parts[0] if item.path.is_relative_to(TESTS) else ""
        if suite in LONG_SUITES:
            item.add_marker(pytest.mark.timeout(LONG_TIMEOUT_S))
        elif item.get_closest_marker("slow") is not None:
            item.add_marker(pytest.mark.timeout(SLOW_TIMEOUT_S))


@pytest.fixture
def rng() -> random.Random:
    """Seeded by SEED, else at random; pytest shows the line where the test fails."""
    seed = int(os.environ.get("SEED") or random.SystemRandom().getrandbits(32))
    print(f"SEED={seed}")
    return random.Random(seed)


@pytest.fixture
def free_port() -> int:
    """Free a moment ago; for processes that can not be told to bind port 0."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


@pytest.fixture(
    params=[
        pytest.param("redis", marks=pytest.mark.redis),
        pytest.param("valkey", marks=pytest.mark.redis),
    ]
)
def redis_server(request: pytest.FixtureRequest) -> Iterator[RedisProcess]:
    """An empty server, of each product that this machine has."""
    binary = redis_binary() if request.param == "redis" else valkey_binary()
    if binary is None:
        pytest.skip(f"no {request.param} server here")
    process = RedisProcess(binary).start()
    yield process
    process.stop()
