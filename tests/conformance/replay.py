"""`python -m tests.conformance.replay [DIR]`: our decisions against those of the real schedulers.

Walks each trace under a directory (tests/conformance/traces by default), prints a line for each,
and exits with 1 if one does not agree. Knows nothing about the schedulers (trace_v1, trace_v0 drive
them). Invariant: every field of every `expect` is compared, block ids and free lists included.
"""

from __future__ import annotations

import argparse
import gzip
import json
import sys
import traceback
from collections import Counter, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.conformance.trace_v0 import V0Trace
from tests.conformance.trace_v1 import V1Trace, without_empty

TRACES = Path(__file__).parent / "traces"
DRIVERS: dict[str, Callable[[dict[str, Any]], V1Trace | V0Trace]] = {
    "vllm-v1": V1Trace,
    "vllm-v0": V0Trace,
}
NUM_STEPS_BEFORE = 3


@dataclass(slots=True)
class Verdict:
    """`mismatch`: what to print of the first decision that differs; empty if all agree."""

    scenario: str
    num_steps: int = 0
    mismatch: str = ""
    is_skipped: bool = False


def read_trace(path: Path) -> Iterator[dict[str, Any]]:
    with gzip.open(path, "rt") as lines:
        for line in lines:
            yield json.loads(line)


def replay(path: Path) -> Verdict:
    """Replay one trace up to its first difference."""
    events = read_trace(path)
    header = next(events)
    verdict = Verdict(f"{header['engine'].removeprefix('vllm-')}/{header['scenario']}")
    make_driver = DRIVERS.get(header["engine"])
    if make_driver is None:
        verdict.is_skipped = True
        return verdict
    driver = make_driver(header)
    before: deque[dict[str, Any]] = deque(maxlen=2 * NUM_STEPS_BEFORE)
    for event in events:
        kind = event["e"]
        if kind == "end":
            break
        try:
            decided = getattr(driver, kind)(event) or {}
        except Exception:  # noqa: BLE001 - a scheduler that fails is a mismatch, not the end
            verdict.mismatch = f"  {kind} {event.get('step', '')} failed:\n{traceback.format_exc()}"
            return verdict
        expected = without_empty(event.get("expect", {}))
        if decided != expected:
            verdict.mismatch = describe(event, decided, expected, list(before))
            return verdict
        if kind in ("schedule", "update"):
            verdict.num_steps += kind == "schedule"
            before.append(event)
    return verdict


def describe(
    event: dict[str, Any],
    decided: dict[str, Any],
    expected: dict[str, Any],
    before: list[dict[str, Any]],
) -> str:
    """Both decisions side by side, ours and theirs, and the steps before.

    What agrees is shown once; of what does not, only the parts that differ, each by its path.
    """
    lines = [f"  {event['e']} {event.get('step', event.get('id', ''))} differs:"]
    for key in sorted(decided.keys() | expected.keys()):
        ours, theirs = decided.get(key), expected.get(key)
        if ours == theirs:
            lines.append(f"    {key:24} {json.dumps(ours)}")
    differing = list(differences("", decided, expected))
    width = max(len(ours) for _, ours, _ in differing)
    lines.append(f"  * {'':24} {'ours':{width}} | theirs")
    lines += [f"  * {path:24} {ours:{width}} | {theirs}" for path, ours, theirs in differing]
    lines.append("  the steps before:")
    lines += [f"    {e['e']} {e['step']}: {json.dumps(e['expect'])}" for e in before]
    return "\n".join(lines)


def differences(path: str, ours: Any, theirs: Any) -> Iterator[tuple[str, str, str]]:
    """(path, our value, their value) of each part that differs, as deep as both have it."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        parts = {f"{path}.{key}": key for key in sorted({**ours, **theirs})}
    elif isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs):
        parts = {f"{path}[{index}]": index for index in range(len(ours))}
    else:
        yield path.removeprefix("."), json.dumps(ours), json.dumps(theirs)
        return
    for part, key in parts.items():
        a, b = (_at(value, key) for value in (ours, theirs))
        if a != b:
            yield from differences(part, a, b)


def _at(value: Any, key: Any) -> Any:
    return value.get(key) if isinstance(value, dict) else value[key]


def engine_of(path: Path) -> str:
    """ "v1" or "v0", as the trace's header says."""
    engine: str = next(read_trace(path))["engine"]
    return engine.removeprefix("vllm-")


def main() -> int:
    parser = argparse.ArgumentParser(description="compare our decisions with recorded ones")
    parser.add_argument("traces", nargs="?", type=Path, default=TRACES)
    parser.add_argument("--engine", choices=("v0", "v1", "all"), default="all")
    parser.add_argument("--only", nargs="*", default=[], help="only these scenarios")
    args = parser.parse_args()
    paths = sorted(args.traces.rglob("*.jsonl.gz"))
    if not paths:
        print(f"no traces under {args.traces}", file=sys.stderr)
        return 2
    counts = Counter[str]()
    for path in paths:
        try:
            engine = engine_of(path)
        except (OSError, EOFError, ValueError, KeyError, StopIteration) as error:
            print(f"{path}: no trace: {error}", file=sys.stderr)
            return 2
        if args.engine not in (engine, "all"):
            counts[f"{engine} passed over"] += 1
        elif not args.only or path.name.removesuffix(".jsonl.gz") in args.only:
            counts[_replay_and_print(path)] += 1
    print(", ".join(f"{count} {outcome}" for outcome, count in counts.items() if count))
    return 1 if counts["differ"] or counts["not implemented"] or not counts["agree"] else 0


def _replay_and_print(path: Path) -> str:
    verdict = replay(path)
    outcome = "differ" if verdict.mismatch else "agree"
    if verdict.is_skipped:
        outcome = "not implemented"
    print(f"{verdict.scenario:40} {outcome:16} {verdict.num_steps} steps", flush=True)
    if verdict.mismatch:
        print(verdict.mismatch)
    return outcome


if __name__ == "__main__":
    sys.exit(main())
