"""Routers outside follow the prefix cache by its events, so they have to add up."""

from __future__ import annotations

from scheduler_svc.core.journal import Journal
from scheduler_svc.core.rules.kv_events import (
    AllBlocksCleared,
    BlockRemoved,
    BlocksStored,
    KVEventLog,
)
from scheduler_svc.core.unified.scheduler import UnifiedScheduler
from tests.factories import LaneDriver, make_config, make_request


def test_events_replayed_give_what_is_cached() -> None:
    config = make_config(num_gpu_blocks=9)
    log = KVEventLog()
    lane = LaneDriver(config)
    lane.scheduler = UnifiedScheduler("e0", config, lane.requests, Journal(), listener=log)
    for number in range(6):
        prompt = [number % 3] * 9
        lane.add(make_request(f"r{number}", prompt, max_tokens=6))
        for _ in range(7):
            lane.step()
    count: dict[bytes, int] = {}
    for event in log.take():
        match event:
            case BlocksStored():
                assert len(event.token_ids) == 4 * len(event.block_hashes)
                for block_hash in event.block_hashes:
                    count[block_hash] = count.get(block_hash, 0) + 1
            case BlockRemoved():
                count[event.block_hash] -= 1
            case AllBlocksCleared():
                count.clear()
    cached = lane.scheduler.lane.kv.pool.cached
    assert {h: n for h, n in count.items() if n} == {h: len(b) for h, b in cached.items()}
    assert cached
    assert lane.scheduler.reset_prefix_cache(reset_running=True)
    assert log.take() == [AllBlocksCleared()]
