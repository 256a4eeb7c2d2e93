"""Ours beside peers: the same requests, in turn, on the same machine.

Knows who is compared and how figures become ratios. Invariant: sides take turns, round by round, so
that what else the machine does meets all of them; of each side the best round counts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import uvloop

from segue.bench.figures import figures
from segue.bench.load import Target, run_closed_loop
from segue.bench.peers import Peer, PeerFailed, running
from segue.bench.workload import PromptSource, random_requests

WARM_UP_TOKENS = 8


@dataclass(slots=True, frozen=True)
class Turns:
    """What every side is asked for."""

    streams: tuple[int, ...]
    prompt_tokens: int
    output_tokens: int
    source: PromptSource
    rounds: int


def compare(
    peers: Sequence[Peer], turns: Turns, scratch: Path, say: Callable[[str], None]
) -> list[dict[str, Any]]:
    """One row for each number of streams; ratios are the first peer's over each other one's."""
    best: dict[tuple[str, int], dict[str, Any]] = {}
    for number in range(turns.rounds):
        for peer in peers:
            say(f"round {number + 1} of {turns.rounds}: {peer.name}")
            for streams, found in _one_turn(peer, turns, scratch):
                say(f"  {streams} streams: {found['output_tokens_per_s']} tok/s")
                known = best.get((peer.name, streams))
                rate = found["output_tokens_per_s"]
                if known is None or rate > known["output_tokens_per_s"]:
                    best[peer.name, streams] = found
    names = [peer.name for peer in peers]
    return [_row(streams, names, best) for streams in turns.streams]


def _one_turn(peer: Peer, turns: Turns, scratch: Path) -> list[tuple[int, dict[str, Any]]]:
    with running(peer, scratch / f"{peer.name}.log") as url:
        target = Target(url, peer.model)
        before = replace(turns.source, seed=turns.source.seed - 1)
        warm_up = random_requests(1, turns.prompt_tokens, WARM_UP_TOKENS, before)
        _measure(peer, target, warm_up, 1)
        found: list[tuple[int, dict[str, Any]]] = []
        for streams in turns.streams:
            source = replace(turns.source, seed=turns.source.seed + streams)
            requests = random_requests(
                2 * streams, turns.prompt_tokens, turns.output_tokens, source
            )
            found.append((streams, _measure(peer, target, requests, streams)))
        return found


def _measure(peer: Peer, target: Target, requests: Sequence[Any], streams: int) -> dict[str, Any]:
    result = uvloop.run(run_closed_loop(target, requests, streams))
    if result.failures:
        raise PeerFailed(f"{peer.name}: {result.failures[0]}")
    return figures(result)


def _row(
    streams: int, names: Sequence[str], best: dict[tuple[str, int], dict[str, Any]]
) -> dict[str, Any]:
    first, *others = names
    row: dict[str, Any] = {"streams": streams} | {name: best[name, streams] for name in names}
    ours = best[first, streams]
    for name in others:
        theirs = best[name, streams]
        row[f"throughput of {first} / {name}"] = _ratio(
            ours["output_tokens_per_s"], theirs["output_tokens_per_s"]
        )
        row[f"ttft of {first} / {name}"] = _ratio(ours["ttft_ms"]["p50"], theirs["ttft_ms"]["p50"])
    return row


def _ratio(ours: float, theirs: float) -> float:
    return round(ours / theirs, 3) if theirs else float("inf")
