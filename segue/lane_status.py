"""What a leader's status says of a lane, for those who ask it over gRPC.

Knows the message; knows no scheduler. Invariant: gateways and `segue ctl` judge a lane alike.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from segue.v1.scheduler_pb2 import LaneStatus

DRAINING = "draining"


def takes_requests(lane: LaneStatus) -> bool:
    """Its executor is there, and is not being drained."""
    return lane.is_connected and lane.status != DRAINING
