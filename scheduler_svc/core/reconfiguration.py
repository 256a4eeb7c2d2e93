"""Settings that are changed while requests run: part of the state, beside what the flags say.

A change is an event like any other, so it is in the commit of the turn that took it (rule 1), and
the steps planned in that turn are planned by it. A lane's policy is then made anew from the lane's
rows under the new settings: exactly what a successor would do, and restoring is known to be exact.

Knows nothing about flags; the shell brings a `Configuration` that does. Invariant: the engine's
configuration is a function of the flags and of the stored settings, and of nothing else.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

from scheduler_svc.core.events import (
    Reply,
    Setting,
    SettingsChanged,
    SettingsRefused,
    SettingsTaken,
)

if TYPE_CHECKING:
    from scheduler_svc.core.engine_state import EngineConfig, EngineState
    from scheduler_svc.core.lane import Lane

Settings = Mapping[str, Setting]


class Configuration(Protocol):
    """What this process was started with, and what follows from it and some settings."""

    def holding(self, settings: Settings) -> dict[str, Setting]:
        """Those that still replace what they replaced: a flag that was changed since wins."""
        ...

    def engine_config(self, settings: Settings) -> EngineConfig:
        """Raises ValueError, in one line, where they do not go together."""
        ...


class Reconfiguration:
    """Nothing can be changed where no configuration was brought."""

    def __init__(self, state: EngineState, configuration: Configuration | None) -> None:
        self._state = state
        self._configuration = configuration

    def restore(self, stored: bytes) -> None:
        """What an earlier leader had taken. Before any lane is restored."""
        state, configuration = self._state, self._configuration
        if configuration is None:
            return
        settings = configuration.holding(_read(stored))
        try:
            state.config = configuration.engine_config(settings)
        except ValueError:  # they do not go with the flags that are new: those are the later word
            return
        state.settings = settings

    def change(self, event: SettingsChanged) -> list[Reply]:
        state, configuration = self._state, self._configuration
        if configuration is None:
            return [SettingsRefused("nothing can be changed here")]
        settings = {**state.settings, **event.changes}
        holding = {name: setting for name, setting in settings.items() if setting is not None}
        try:
            config = configuration.engine_config(holding)
        except ValueError as error:
            return [SettingsRefused(str(error))]
        is_other = config.scheduler != state.config.scheduler
        state.config, state.settings = config, holding
        if is_other:
            for lane in state.lanes.values():
                self._make_policy_anew(lane)
        return [SettingsTaken(holding)]

    def _make_policy_anew(self, lane: Lane) -> None:
        state, old = self._state, lane.policy
        if old is None:
            return
        state.counters.num_tokens_recomputed += old.num_tokens_given_back()
        queued = [
            (request.queue.value, request.queue_rank, request)
            for request in state.requests.values()
            if request.lane_id == lane.executor_id and request.queue is not None
        ]
        queued.sort(key=lambda entry: entry[:2])
        blocks = list(old.block_rows(old.touched_block_ids()))
        scalars = json.loads(json.dumps(old.scalars()))  # as a successor reads them
        lane.policy = state.new_policy(lane)
        lane.policy.restore([request for _, _, request in queued], blocks, scalars)
        state.dirty_lanes.add(lane.executor_id)


def write_settings(settings: Settings) -> bytes:
    values = {name: [one.value, one.flag] for name, one in sorted(settings.items())}
    return json.dumps(values, separators=(",", ":")).encode()


def _read(stored: bytes) -> dict[str, Setting]:
    return {name: Setting(*pair) for name, pair in json.loads(stored or b"{}").items()}
