"""The loop's calls on the core, where somebody may watch; this one does not.

Knows the core. Invariant: whoever watches does what this class does, and adds only what he notes.
"""

from __future__ import annotations

from collections.abc import Collection

from scheduler_svc.config import SchedulerServiceConfig
from scheduler_svc.core.engine_core import EngineCore
from scheduler_svc.core.events import Event, Reply


class LoopObserver:
    def __init__(self, core: EngineCore) -> None:
        self.core = core

    def use(self, config: SchedulerServiceConfig) -> None:
        """Settings were changed."""

    def begin(self) -> None:
        """This leader's life begins, on the state that it has loaded."""

    def handle(self, event: Event) -> list[Reply]:
        return self.core.handle(event)

    def plan(self, ready: Collection[str]) -> None:
        self.core.plan(ready)

    def commit_begins(self) -> None:
        """What was handled and planned is about to be stored."""

    def committed(self) -> None:
        """It is stored, and nobody has been told yet."""

    def sent(self) -> None:
        """Everybody has been told."""
