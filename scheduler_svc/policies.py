"""Which scheduling policy `--policy` means: a name of ours, an entry point, or `module:Class`.

Knows nothing about what a policy does. Invariant: what it returns builds `SchedulingPolicy`s.
"""

from __future__ import annotations

import traceback
from importlib import import_module
from importlib.metadata import entry_points
from inspect import isabstract

from scheduler_svc.core.engine_state import MakePolicy
from scheduler_svc.core.policy import SchedulingPolicy
from scheduler_svc.core.three_queue.scheduler import ThreeQueueScheduler
from scheduler_svc.core.unified.scheduler import UnifiedScheduler

BUILT_IN: dict[str, type[SchedulingPolicy]] = {
    "three_queue": ThreeQueueScheduler,
    "unified": UnifiedScheduler,
}
ENTRY_POINT_GROUP = "segue.policies"


class UnknownPolicy(Exception):
    """`--policy` names nothing that can be used."""


def load_policy(name: str) -> MakePolicy:
    """The class that makes policies; raises UnknownPolicy with a line that a user can act on."""
    if name in BUILT_IN:
        return BUILT_IN[name]
    try:
        found = _find(name)
    except ImportError as error:
        raise UnknownPolicy(f"--policy {name}: {_in_one_line(error)}") from error
    except Exception as error:  # a module that is theirs fails in any way
        what = f"{type(error).__name__}: {_in_one_line(error)}"
        raise UnknownPolicy(f"--policy {name}: {what}{_where(error)}") from error
    if not (isinstance(found, type) and issubclass(found, SchedulingPolicy)):
        known = ", ".join(sorted(BUILT_IN))
        raise UnknownPolicy(f"--policy {name}: not one of {known}, nor module:Class of a policy")
    if isabstract(found):
        missing = ", ".join(sorted(found.__abstractmethods__))
        raise UnknownPolicy(f"--policy {name}: {found.__name__} has no {missing}")
    return found


def takes_v0_flags(policy: MakePolicy) -> bool:
    return isinstance(policy, type) and issubclass(policy, ThreeQueueScheduler)


def _find(name: str) -> object:
    for entry_point in entry_points(group=ENTRY_POINT_GROUP, name=name):
        return entry_point.load()
    module, colon, attribute = name.partition(":")
    return getattr(import_module(module), attribute) if colon else None


def _in_one_line(error: Exception) -> str:
    return " ".join(str(error).split())


def _where(error: Exception) -> str:
    """The line of their file that raised; a syntax error says it itself."""
    frames = traceback.extract_tb(error.__traceback__)
    last = frames[-1] if frames else None
    if last is None or last.filename == __file__ or last.filename.startswith("<"):
        return ""
    return f" ({last.filename}:{last.lineno})"
