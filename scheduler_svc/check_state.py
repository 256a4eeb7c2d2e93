"""`python -m scheduler_svc.check_state`: the invariants of a deployment's state, which may be live.

For `segue state --check`. Knows the store, and prints what `state_checks.py` says as one JSON
object. Invariant: writes nothing; exit code 1, with one line on stderr, where nothing can be read.
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

from scheduler_svc.check_redis import tell
from scheduler_svc.core.rows import Key, Rows, Table
from scheduler_svc.state_checks import violations
from scheduler_svc.store.redis_store import open_store
from scheduler_svc.store.state_store import SCHEMA_VERSION, LoadedState, StoreError
from segue.wire import WireCodec


async def look(redis_url: str, deployment: str) -> dict[str, Any]:
    store = open_store(redis_url, deployment)
    try:
        if await store.current_leader() is None:
            raise StoreError(f"there is no state of deployment {deployment!r}")
        loaded = await store.load_at_once()
    finally:
        await store.close()
    return {
        "violations": _violations(loaded),
        "num_requests": _count(loaded.rows, Table.REQUESTS),
        "num_lanes": _count(loaded.rows, Table.LANES),
    }


def _violations(loaded: LoadedState) -> list[str]:
    if loaded.schema_version != SCHEMA_VERSION:
        return [f"schema version {loaded.schema_version}: this program reads {SCHEMA_VERSION}"]
    if loaded.is_torn:
        return ["a commit was begun and never done: the rows are a mixture of two states"]
    policy = loaded.config_digest.rpartition("-")[0]
    return violations(loaded.rows, WireCodec(), policy)


def _count(rows: Rows, table: Table) -> int:
    return len(rows.hashes.get(Key(table), {}))


def main() -> int:
    parser = argparse.ArgumentParser(prog="scheduler_svc.check_state")
    parser.add_argument("--redis-url", required=True)
    parser.add_argument("--deployment", default="default")
    args = parser.parse_args()
    return tell(look(args.redis_url, args.deployment))


if __name__ == "__main__":
    sys.exit(main())
