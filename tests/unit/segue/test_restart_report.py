"""The one line about a restart says what is new, in the leader's numbers."""

from __future__ import annotations

from typing import cast

import pytest

from segue import restart_report
from segue.admin_client import AdminClient, NoLeader
from segue.restart_report import RestartReport
from segue.v1 import scheduler_pb2, types_pb2


class Leader:
    """Answers with these numbers; None: nobody leads."""

    def __init__(self) -> None:
        self.status: scheduler_pb2.GetStatusResponse | None = None

    async def get_status(self) -> scheduler_pb2.GetStatusResponse:
        if self.status is None:
            raise NoLeader("no scheduler leads")
        return self.status

    def says(self, epoch: int, resumed: int, recomputed: int, running: int = 0) -> None:
        self.status = scheduler_pb2.GetStatusResponse(
            leader=types_pb2.Leader(epoch=epoch),
            num_streams_resumed=resumed,
            num_tokens_recomputed=recomputed,
            lanes=[scheduler_pb2.LaneStatus(num_running=running)],
        )


@pytest.fixture
async def leader(monkeypatch: pytest.MonkeyPatch) -> Leader:
    monkeypatch.setattr(restart_report, "RECONNECT_S", 0.0)
    return Leader()


async def noted(leader: Leader) -> RestartReport:
    report = RestartReport(cast(AdminClient, leader))
    await report.note()
    return report


async def test_a_new_leader_counts_from_zero(leader: Leader) -> None:
    leader.says(epoch=1, resumed=5, recomputed=100)
    report = await noted(leader)
    leader.says(epoch=2, resumed=8, recomputed=0)
    line = await report.describe("scheduler-0")
    assert line == " · epoch 2 · 8 streams resumed · 0 tokens recomputed"


async def test_under_the_same_leader_only_what_is_new_counts(leader: Leader) -> None:
    leader.says(epoch=1, resumed=5, recomputed=100)
    report = await noted(leader)
    leader.says(epoch=1, resumed=7, recomputed=100)
    assert "2 streams resumed · 0 tokens" in await report.describe("gateway-0")
    leader.says(epoch=1, resumed=7, recomputed=130, running=3)
    assert "3 streams resumed · 30 tokens" in await report.describe("executor-0")


async def test_a_leader_that_dies_while_all_starts_is_told_like_any_other(leader: Leader) -> None:
    report = await noted(leader)
    leader.says(epoch=2, resumed=3, recomputed=0)
    assert "epoch 2 · 3 streams resumed" in await report.describe("scheduler-0")


async def test_without_a_leader_it_says_so(leader: Leader) -> None:
    leader.says(epoch=1, resumed=0, recomputed=0)
    report = await noted(leader)
    leader.status = None
    assert await report.describe("redis") == " · no scheduler leads"
