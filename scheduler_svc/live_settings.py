"""Which settings a scheduler takes while it leads, and what flags and settings amount to together.

Knows the flags; pure, so the core may ask it. Invariant: a name is either here, or refused with the
reason that a person needs; whatever is accepted passes the checks that a flag passes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, get_type_hints

from scheduler_svc.config import SchedulerServiceConfig
from scheduler_svc.core.engine_state import EngineConfig
from scheduler_svc.core.events import Setting
from scheduler_svc.core.reconfiguration import Settings
from segue.config import field_names, flag, metavar, read_text, shown

BUDGETS = (
    *("max_num_batched_tokens", "max_num_seqs", "long_prefill_token_threshold"),
    *("watermark", "priority_aging_s"),
)
LIMITS = ("max_queued_requests", "finished_ttl_s")
TIMEOUTS = ("orphan_timeout_s", "executor_grace_s", "step_timeout_s")
WATCHED = ("log_steps", "trace_step_ratio", "trace_slow_step_ms")
LIVE = (*BUDGETS, *LIMITS, *TIMEOUTS, *WATCHED)
AT_LEAST_ONE = frozenset({"max_num_batched_tokens", "max_num_seqs", "max_queued_requests"})

SHAPES = "what requests and executors hold now was made under it"
STARTS = "it is read when a process starts"
SHAPING = (
    *("policy", "block_size", "max_model_len", "scheduling_policy", "enable_prefix_caching"),
    *("enable_chunked_prefill", "async_scheduling", "preemption_mode", "num_speculative_tokens"),
)
REASONS = {
    **dict.fromkeys(SHAPING, SHAPES),
    **dict.fromkeys(("lease_ttl_s", "heartbeat_s"), "its peers count with it"),
}
SECRET = frozenset({"redis_url"})  # it may have a password in it
HINTS = get_type_hints(SchedulerServiceConfig)


class NoSuchSetting(ValueError):
    """The caller's mistake: no scheduler has it, or the text is no value of it."""


class FixedSetting(ValueError):
    """It exists, and a scheduler that leads does not change it."""


class LiveConfiguration:
    """What the core calls a `Configuration`."""

    def __init__(self, flags: SchedulerServiceConfig) -> None:
        self.flags = flags

    def changes(self, values: Mapping[str, str], unset: Sequence[str]) -> dict[str, Setting | None]:
        """As an event carries them. Raises one of the two above."""
        changes: dict[str, Setting | None] = dict.fromkeys(map(self._known, unset))
        for given, text in values.items():
            name = self._known(given)
            value = _value(name, text)
            changes[name] = Setting(shown(value), shown(getattr(self.flags, name)))
        return changes

    def why_fixed(self, name: str) -> str:
        """Empty: it can be changed."""
        if name in BUDGETS and self.flags.policy != "unified":
            return f"{self.flags.policy} has no way to change it between two steps"
        return "" if name in LIVE else REASONS.get(name, STARTS)

    def _known(self, given: str) -> str:
        name = given.strip().removeprefix("--").replace("-", "_")
        if name not in HINTS:
            raise NoSuchSetting(f"a scheduler has no setting {given!r}")
        if reason := self.why_fixed(name):
            raise FixedSetting(
                f"{name} is not changed while a scheduler leads: {reason}; "
                f"start the schedulers with another {flag(name)}"
            )
        return name

    def holding(self, settings: Settings) -> dict[str, Setting]:
        return {
            name: setting
            for name, setting in settings.items()
            if name in HINTS
            and not self.why_fixed(name)
            and shown(getattr(self.flags, name)) == setting.flag
        }

    def config(self, settings: Settings) -> SchedulerServiceConfig:
        values = {name: _value(name, setting.value) for name, setting in settings.items()}
        return replace(self.flags, **values)

    def engine_config(self, settings: Settings) -> EngineConfig:
        return self.config(settings).engine_config()

    def table(self, settings: Settings) -> list[tuple[str, str, str, str]]:
        """Each setting: name, value, what the flag says, and why it is fixed."""
        config = self.config(settings)
        others = [n for n in field_names(SchedulerServiceConfig) if n not in LIVE]
        names = [name for name in (*LIVE, *others) if name not in SECRET]
        return [
            (
                name,
                shown(getattr(config, name)),
                shown(getattr(self.flags, name)),
                self.why_fixed(name),
            )
            for name in names
        ]


def _value(name: str, text: str) -> Any:
    hint = HINTS[name]
    try:
        value = read_text(hint, text)
    except ValueError:
        raise NoSuchSetting(f"{name}: {text!r} is not {metavar(hint)}") from None
    if isinstance(value, int | float):
        least = 1 if name in AT_LEAST_ONE else 0
        if not math.isfinite(value) or value < least:
            raise NoSuchSetting(f"{name}: {text} is less than {least}, or no finite number")
    return value
