"""Which scheduling policy `--policy` means: a name of ours, an entry point, or `module:Class`.

Knows nothing about what a policy does. Invariant: what it returns builds `SchedulingPolicy`s.
"""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import entry_points

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
    found: object = None
    for entry_point in entry_points(group=ENTRY_POINT_GROUP, name=name):
        found = entry_point.load()
    if found is None and ":" in name:
        module, _, attribute = name.partition(":")
        try:
            found = getattr(import_module(module), attribute)
        except (ImportError, AttributeError) as error:
            raise UnknownPolicy(f"--policy {name}: {error}") from error
    if not (isinstance(found, type) and issubclass(found, SchedulingPolicy)):
        known = ", ".join(sorted(BUILT_IN))
        raise UnknownPolicy(f"--policy {name}: not one of {known}, nor module:Class of a policy")
    return found
