"""The block tables' state that no row has, as JSON values, and back.

Knows nothing about decisions. Invariant: restoring what was written gives the same block tables,
which are written the same again (in the order of ids, not of their coming). What follows from a
request's own fields is left out, so that nearly nothing is left to write.
"""

from __future__ import annotations

from typing import Any

from scheduler_svc.core.block_pool import BlockRow
from scheduler_svc.core.request import Request
from scheduler_svc.core.three_queue.block_tables import BlockTables


def write_block_tables(tables: BlockTables, requests: dict[str, Request]) -> dict[str, Any]:
    """`requests`: all that are known; those of other lanes have no table here."""
    state: dict[str, Any] = {}
    accesses = tables.last_access
    if accesses:
        latest = max(accesses.values())
        older = {r: time for r, time in accesses.items() if time != latest}
        state["last_access"] = [latest, dict(sorted(older.items()))]
    sizes = tables.num_table_tokens.items()
    not_computed = [(r, n) for r, n in sizes if n != requests[r].num_computed_tokens]
    unusual = {r: n for r, n in not_computed if n != _usual_table_tokens(requests[r])}
    if unusual:
        state["table_tokens"] = dict(sorted(unusual.items()))
    if tables.remembered_hits:
        state["remembered_hits"] = dict(sorted(tables.remembered_hits.items()))
    if tables.cpu.num_total:
        state["cpu_tables"] = dict(sorted(tables.cpu_tables.items()))
        rows = tables.cpu.rows(tables.cpu.touched_block_ids())
        state["cpu_blocks"] = [_write_cpu_block(row) for row in rows]
    return state


def restore_block_tables(
    tables: BlockTables, queued: list[Request], blocks: list[BlockRow], state: dict[str, Any]
) -> None:
    tables.gpu.restore(blocks)
    tables.cpu.restore([_read_cpu_block(row) for row in state.get("cpu_blocks", ())])
    tables.cpu_tables = {r: list(table) for r, table in state.get("cpu_tables", {}).items()}
    tables.remembered_hits = dict(state.get("remembered_hits", {}))
    latest, older = state.get("last_access", (None, {}))
    unusual = state.get("table_tokens", {})
    for request in queued:
        request_id = request.request_id
        if not request.block_ids and request_id not in tables.cpu_tables:
            continue
        usual = _usual_table_tokens(request)
        tables.num_table_tokens[request_id] = unusual.get(request_id, usual)
        if latest is not None:
            tables.last_access[request_id] = older.get(request_id, latest)
        tables.restore_table(request)


def _usual_table_tokens(request: Request) -> int:
    """The whole of a prompt from the start; then all tokens up to the last one that was fed in."""
    return request.num_tokens if request.is_prefill_chunk else request.num_computed_tokens


def _write_cpu_block(row: BlockRow) -> list[Any]:
    block_hash = row.block_hash.hex() if row.block_hash is not None else None
    return [row.block_id, row.ref_cnt, block_hash, row.registration, row.rank]


def _read_cpu_block(row: list[Any]) -> BlockRow:
    block_hash = bytes.fromhex(row[2]) if row[2] is not None else None
    return BlockRow(row[0], row[1], block_hash, row[3], row[4])
