"""`python -m tests.supervised_sleepers STATE_DIR [WORD]`: a supervisor of two trivial children.

Knows the supervisor; its children print WORD and sleep. Stands for `segue serve` where a test kills
the supervisor itself. A WORD of `broken` makes them end at once.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

from segue.child import ChildSpec
from segue.console import Console
from segue.process_identity import ProcessIdentity
from segue.state_directory import ServeRecord, StateDirectory, StateDirectoryError
from segue.supervisor import ChildFailed, StopRequested, Supervisor

SLEEPER = """
import signal, sys, time
def leave(number, frame):
    print("leaving", flush=True)
    sys.exit(0)
signal.signal(signal.SIGTERM, leave)
print(sys.argv[1], flush=True)
if sys.argv[1] == "broken":
    sys.exit(3)
time.sleep(60)
"""


def has_spoken(log: Path, word: str) -> Callable[[], Awaitable[bool]]:
    async def is_ready() -> bool:
        return word != "broken" and log.exists() and word in log.read_text()

    return is_ready


async def supervise(path: Path, word: str) -> None:
    directory = StateDirectory.open(path)
    console = Console()
    for leftover in directory.end_leftovers(grace_s=1.0):
        console.say(f"ended {leftover}")
    own = ProcessIdentity.of(os.getpid())
    assert own is not None

    async def describe(name: str) -> str:
        return f" · described {name}"

    async with Supervisor(directory, console, ServeRecord(own), describe) as supervisor:
        for stage, name in enumerate(["first", "second"]):
            command = (sys.executable, "-c", SLEEPER, word)
            is_ready = has_spoken(directory.logs_path / f"{name}.log", word)
            await supervisor.start(ChildSpec(name, command, stage, is_ready))
        await supervisor.wait_ready("first", "second")
        console.say("all ready")
        await supervisor.run_until_stopped()


def main() -> int:
    try:
        asyncio.run(supervise(Path(sys.argv[1]), (*sys.argv[2:], "hello")[0]))
    except StopRequested:
        return 0
    except (StateDirectoryError, ChildFailed) as error:
        print(f"refused: {error}", flush=True)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
