"""A lane's row (JSON) and the rows of its blocks, as text that a person can read in redis-cli.

Knows nothing about where rows are kept. Invariant: a block that is as new (free, no hash, in its
first place of the free list) has no row, so a generation that begins writes nothing.
"""

from __future__ import annotations

import json
from dataclasses import astuple
from functools import lru_cache
from typing import Any

from scheduler_svc.core.block_pool import BlockRow
from scheduler_svc.core.lane import Lane, LaneStatus
from segue.types import Capacity, Generation, StepKey

_to_json = json.JSONEncoder(separators=(",", ":")).encode


def write_lane_row(lane: Lane) -> bytes:
    head = _head(
        lane.address, lane.status.value, lane.incarnation_id, lane.generation, lane.capacity
    )
    policy = _to_json(lane.policy.scalars()) if lane.policy is not None else "null"
    retired = lane.retired
    return (
        f'{head},"next_step_id":{lane.next_step_id},'
        f'"retired":[{retired.step_id},{retired.epoch}],"policy":{policy}}}'
    ).encode()


@lru_cache(maxsize=64)
def _head(
    address: str,
    status: str,
    incarnation_id: str,
    generation: Generation | None,
    capacity: Capacity | None,
) -> str:
    """What a step leaves as it is: the row is written at each."""
    value = {
        "address": address,
        "status": status,
        "incarnation_id": incarnation_id,
        "generation": generation and [generation.epoch, generation.number],
        "capacity": capacity and list(astuple(capacity)),
    }
    return _to_json(value).removesuffix("}")


def read_lane_row(executor_id: str, row: bytes) -> tuple[Lane, dict[str, Any] | None]:
    """The lane without policy and steps, and the policy's scalars."""
    value = json.loads(row)
    lane = Lane(
        executor_id,
        value["address"],
        LaneStatus(value["status"]),
        value["incarnation_id"],
        Generation(*value["generation"]) if value["generation"] else None,
        Capacity(*value["capacity"]) if value["capacity"] else None,
        value["next_step_id"],
        StepKey(*value["retired"]),
    )
    return lane, value["policy"]


def write_block_row(block: BlockRow) -> bytes:
    block_hash = block.block_hash.hex() if block.block_hash is not None else ""
    return f"{block.ref_cnt}|{block.registration}|{block_hash}".encode()


def read_block_row(block_id: int, row: bytes, rank: int | None) -> BlockRow:
    ref_cnt, registration, block_hash = row.decode().split("|")
    return BlockRow(
        block_id,
        int(ref_cnt),
        bytes.fromhex(block_hash) if block_hash else None,
        int(registration),
        rank,
    )
