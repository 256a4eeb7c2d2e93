"""Settings that are changed while a leader leads, as an operator does, with and without a kill.

Knows which of a world's settings the core takes; the service's own rules are tested with it.
Invariant: as in the service, a setting counts for as long as its flag says what it said.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from scheduler_svc.core.engine_state import EngineConfig
from scheduler_svc.core.events import Setting, SettingsChanged
from scheduler_svc.core.reconfiguration import Settings
from scheduler_svc.core.scheduler_config import CHANGEABLE, SchedulerConfig

if TYPE_CHECKING:
    from tests.sim.cluster import Cluster


class SimulatedConfiguration:
    """What the core asks, of flags that are an `EngineConfig`. Values are `int` or `float`."""

    def __init__(self, flags: EngineConfig, *, takes_budgets: bool) -> None:
        self._flags = flags
        self._takes_budgets = takes_budgets

    def holding(self, settings: Settings) -> dict[str, Setting]:
        return {
            name: setting
            for name, setting in settings.items()
            if self._takes_budgets and setting.flag == flag_text(self._flags.scheduler, name)
        }

    def engine_config(self, settings: Settings) -> EngineConfig:
        if settings and not self._takes_budgets:
            raise ValueError("this policy has no way to change it between two steps")
        values: dict[str, Any] = {
            name: type(getattr(self._flags.scheduler, name))(setting.value)
            for name, setting in settings.items()
        }
        return replace(self._flags, scheduler=replace(self._flags.scheduler, **values))


def flag_text(flags: SchedulerConfig, name: str) -> str:
    return str(getattr(flags, name))


def change_settings(cluster: Cluster) -> None:
    """One or two at a time, or back to the flags; half of the leaders do not live long after."""
    rng, flags = cluster.world.rng, cluster.settings.engine.scheduler
    drawn = {
        "max_num_seqs": rng.choice((1, 2, 6)),
        "max_num_batched_tokens": rng.choice((6, 24, 64)),
        "long_prefill_token_threshold": rng.choice((0, 2, 7)),
        "watermark": rng.choice((0.0, 0.2)),
        "priority_aging_ms": rng.choice((0, 40)),
    }
    assert drawn.keys() == CHANGEABLE
    changes: dict[str, Setting | None] = {}
    for name in rng.sample(sorted(drawn), rng.choice((1, 1, 2))):
        is_back = rng.random() < 0.2
        changes[name] = None if is_back else Setting(str(drawn[name]), flag_text(flags, name))
    cluster.most_seats = max(cluster.most_seats, drawn["max_num_seqs"])
    for leader in cluster.leaders():
        leader.post_event(SettingsChanged(changes))
        if rng.random() < 0.5:
            leader.process.effects_left = rng.randrange(12)
