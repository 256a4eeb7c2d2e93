"""`segue state`: queues, lanes and block tables as Redis has them; `--check`: whether they agree.

Knows how to print what `stored_state.py` has read, and what the scheduler's own check says.
Invariant: reads only, and asks Redis alone, so it shows the state while no scheduler runs, too.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING

from segue.commands.running_serve import NothingServed, add_state_dir_flag, running_serve
from segue.commands.stored_state import QUEUES, JsonObject, StateReader, StoredState
from segue.commands.text_table import text_table
from segue.doctor.services import NotAnswered, ask
from segue.embedded_redis import RedisUnusable

if TYPE_CHECKING:
    from argparse import _SubParsersAction  # pyright: ignore[reportPrivateUsage]

MAX_BLOCKS_SHOWN = 12
REQUEST_COLUMNS = (
    *("request", "status", "lane", "owner", "uncomputed", "in_flight", "drafts", "output"),
    *("preemptions", "cached"),
)
LANE_COLUMNS = (
    *("lane", "status", "generation", "next_step", "retired", "in_flight"),
    *("running", "waiting", "swapped", "free_blocks"),
)


def register(subparsers: _SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "state", help="queues, lanes and block tables, as Redis has them"
    )
    add_state_dir_flag(parser)
    parser.add_argument("--redis-url", help="read this Redis instead of a local serve's")
    parser.add_argument(
        "--deployment", default="default", help="with --redis-url (default default)"
    )
    parser.add_argument("--json", action="store_true", help="all of it, for a program")
    parser.add_argument(
        "--check", action="store_true", help="name what contradicts itself; exit code 1 if anything"
    )
    parser.set_defaults(func=run)


def run(args: argparse.Namespace) -> int:
    try:
        url, deployment = args.redis_url, args.deployment
        if not url:
            _, record = running_serve(args.state_dir)
            url, deployment = record.redis_url, record.deployment
        if args.check:
            return _print_check(url, deployment, is_json=args.json)
        state = asyncio.run(_read(url, deployment))
    except (RedisUnusable, NothingServed, NotAnswered) as error:
        print(f"segue state: {error}", file=sys.stderr)
        return 1
    print(json.dumps(asdict(state), indent=2) if args.json else state_text(state))
    return 0


async def _read(url: str, deployment: str) -> StoredState:
    return await StateReader(url, deployment).read()


def _print_check(url: str, deployment: str, *, is_json: bool) -> int:
    seen = ask("scheduler_svc.check_state", "--redis-url", url, "--deployment", deployment)
    found = seen["violations"]
    if is_json:
        print(json.dumps(seen, indent=2))
    else:
        summary = f"{seen['num_requests']} requests, {seen['num_lanes']} lanes"
        print("\n".join(found) or f"{summary}: no contradiction")
    return int(bool(found))


def state_text(state: StoredState) -> str:
    sections = [
        _named(state.meta | state.engine),
        ["LANES", *text_table(LANE_COLUMNS, map(_lane_cells, state.lanes.items()))],
    ]
    for executor_id, lane in state.lanes.items():
        sections.append(_queues(executor_id, lane))
        sections.append(_tables(executor_id, lane))
    if state.unplaced:
        sections.append(["UNPLACED", *state.unplaced])
    requests = text_table(REQUEST_COLUMNS, map(_request_cells, state.requests.items()))
    sections.append(["REQUESTS", *requests])
    return "\n\n".join("\n".join(section) for section in sections)


def _named(values: dict[str, str]) -> list[str]:
    return [f"{name:<24} {value}" for name, value in sorted(values.items())]


def _queues(executor_id: str, lane: JsonObject) -> list[str]:
    lines = [f"{queue:<8} {' '.join(lane[queue])}" for queue in QUEUES if lane[queue]]
    return [f"QUEUES of {executor_id}, head first", *(lines or ["empty"])]


def _tables(executor_id: str, lane: JsonObject) -> list[str]:
    rows = [(name, len(ids), _shortened(ids)) for name, ids in lane["tables"].items()]
    policy: JsonObject = lane.get("policy") or {}
    swapped: dict[str, list[int]] = policy.get("cpu_tables") or {}
    rows += [
        (name, len(ids), f"CPU: {_shortened([str(block_id) for block_id in ids])}")
        for name, ids in swapped.items()
    ]
    num_hashed = sum(bool(block.get("hash")) for block in lane["blocks"].values())
    return [
        f"BLOCK TABLES of {executor_id}",
        *text_table(("request", "blocks", "block ids"), rows),
        f"blocks with a hash: {num_hashed}; steps in flight: {lane['steps'] or 'none'}",
    ]


def _shortened(block_ids: list[str]) -> str:
    shown = " ".join(block_ids[:MAX_BLOCKS_SHOWN])
    return shown if len(block_ids) <= MAX_BLOCKS_SHOWN else f"{shown} …"


def _lane_cells(item: tuple[str, JsonObject]) -> tuple[object, ...]:
    executor_id, lane = item
    return (
        *(executor_id, lane.get("status", "?"), _dotted(lane.get("generation"))),
        *(lane.get("next_step_id", "?"), _dotted(lane.get("retired"))),
        *(len(lane["steps"]), len(lane["running"]), len(lane["waiting"]) + len(lane["holding"])),
        *(len(lane["swapped"]), _num_free_blocks(lane)),
    )


def _num_free_blocks(lane: JsonObject) -> int | str:
    """Of the usable ones (block 0 is the null block), those in no request's table."""
    capacity: JsonObject | list[int] | None = lane.get("capacity")
    if not isinstance(capacity, list) or not capacity:
        return "?"
    used = {block_id for block_ids in lane["tables"].values() for block_id in block_ids}
    return capacity[0] - 1 - len(used - {"0"})


def _dotted(pair: object) -> str:
    return ".".join(map(str, pair)) if isinstance(pair, list) else "-"  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]


def _request_cells(item: tuple[str, JsonObject]) -> tuple[object, ...]:
    request_id, row = item
    return (
        *(request_id, row.get("status", "?"), row.get("lane") or "-", row.get("owner") or "-"),
        *(_number(row, "num_uncomputed_tokens"), _number(row, "num_in_flight_tokens")),
        *(_num_drafts(row), row["num_output_tokens"], _number(row, "num_preemptions")),
        _number(row, "num_cached_tokens"),
    )


def _num_drafts(row: JsonObject) -> int:
    """For which the next step has room: who they are is known to the executor."""
    drafts = row.get("spec_token_ids")
    return len(drafts.split(",")) if drafts else 0


def _number(row: JsonObject, name: str) -> int:
    return int(row.get(name) or 0)
