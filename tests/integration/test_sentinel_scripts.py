"""The start scripts of k8s/overlays/sentinel, run with real servers on loopback addresses.

A cluster gives each pod a name; here each has an address of 127.0.0.0/8, and the same ports.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from segue.serve_plan import free_ports
from tests.kubernetes.rendered import K8S
from tests.served import wait_until

SCRIPTS = K8S / "overlays" / "sentinel"
ADDRESSES = ("127.0.0.1", "127.0.0.2", "127.0.0.3")
TOOLS = [name for name in ("redis-server", "redis-cli") if shutil.which(name) is None]
pytestmark = [
    pytest.mark.redis,
    pytest.mark.slow,
    pytest.mark.timeout(240),
    pytest.mark.skipif(bool(TOOLS), reason=f"not on the PATH: {TOOLS}"),
]


class Pods:
    """Three servers and three Sentinels, each with a volume of its own."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self.redis_port, self.sentinel_port = free_ports(2)

    def start(self, kind: str, number: int) -> None:
        name, address = f"{kind}-{number}", ADDRESSES[number]
        data = self._directory / name
        data.mkdir(exist_ok=True)
        environ = {
            **os.environ,
            "REDIS_ADDRESS": address,
            "SENTINEL_ADDRESS": address,
            "REDIS_PORT": str(self.redis_port),
            "SENTINEL_PORT": str(self.sentinel_port),
            "REDIS_DATA": str(data),
            "SENTINEL_DATA": str(data),
            "FIRST_REDIS": ADDRESSES[0],
            "SENTINEL_HOST": ADDRESSES[1],
            "DOWN_AFTER_MS": "2000",
        }
        command = ["sh", str(SCRIPTS / f"start-{kind}.sh"), "--bind", address]
        with (self._directory / f"{name}.log").open("ab") as log:
            self._running[name] = subprocess.Popen(command, stdout=log, stderr=log, env=environ)

    def kill(self, name: str) -> None:
        self._running[name].kill()
        self._running[name].wait()

    def replication(self, number: int) -> dict[str, Any]:
        """Empty where the server does not answer."""
        try:
            with redis.Redis(ADDRESSES[number], self.redis_port, socket_timeout=2) as client:
                return client.info("replication")
        except redis.RedisError:
            return {}

    def watched(self, number: int) -> dict[str, Any]:
        try:
            with redis.Redis(ADDRESSES[number], self.sentinel_port, socket_timeout=2) as client:
                seen: Any = client.sentinel_master("segue")
                return seen
        except redis.RedisError:
            return {}

    def stop(self) -> None:
        for name in self._running:
            self.kill(name)


@pytest.fixture
def pods(tmp_path: Path) -> Iterator[Pods]:
    running = Pods(tmp_path)
    yield running
    running.stop()


def test_a_server_that_comes_back_follows_who_has_taken_its_place(pods: Pods) -> None:
    """And the data of the time without it is its own soon after."""
    for number in range(3):
        pods.start("redis", number)

    def has_two_replicas() -> bool:
        return pods.replication(0).get("connected_slaves") == 2

    wait_until(has_two_replicas, "the first server has two replicas")
    for number in range(3):
        pods.start("sentinel", number)

    def all_are_known() -> bool:
        seen = [pods.watched(number) for number in range(3)]
        return all(
            s and s["num-slaves"] == 2 and s["num-other-sentinels"] == 2 and s["is_master"]
            for s in seen
        )

    wait_until(all_are_known, "the sentinels know all of them", 60.0)
    pods.kill("redis-0")

    def successor() -> list[int]:
        """With a replica, so that it takes writes (min-replicas-to-write)."""
        return [
            number
            for number, seen in ((n, pods.replication(n)) for n in (1, 2))
            if seen.get("role") == "master" and seen["min_slaves_good_slaves"] >= 1
        ]

    (master,) = wait_until(successor, "another one is promoted, and followed", 80.0)
    with redis.Redis(ADDRESSES[master], pods.redis_port, socket_timeout=5) as client:
        client.set("meanwhile", "written")
    pods.start("redis", 0)

    def follows() -> bool:
        seen = pods.replication(0)
        return seen.get("role") == "slave" and seen.get("master_link_status") == "up"

    wait_until(follows, "the first one comes back as a replica", 80.0)
    assert pods.replication(0)["master_host"] == ADDRESSES[master]
    with redis.Redis(ADDRESSES[0], pods.redis_port, socket_timeout=5) as client:
        assert client.get("meanwhile") == b"written"
