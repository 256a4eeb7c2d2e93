"""An executor whose steps take no time: the real service, stream and ledger around no model.

`python -m tests.bench.instant_executor --listen HOST:PORT --schedulers HOST:PORT`, until SIGTERM.
Knows plans and results; computes nothing. Invariant: each request that samples gets one token,
which is its output's index, so that a figure of a scheduler has no model's time in it.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import signal

import uvloop

from executor_svc.scheduler_client import Announcement, Registration
from executor_svc.service import ExecutorIdentity, ExecutorService
from executor_svc.step_worker import StepWorker
from segue.grpc_server import bind, make_server
from segue.types import Capacity, ModelRunnerOutput, SchedulerOutput

EXECUTOR_ID, INCARNATION_ID = "e0", "bench"
VOCAB_SIZE = 50_000
HEARTBEAT_S = 0.5
STOP_GRACE_S = 1.0


class InstantRunner:
    num_positions_computed = 0
    num_positions_recomputed = 0
    num_draft_tokens = 0
    num_accepted_draft_tokens = 0

    def __init__(self, capacity: Capacity) -> None:
        self._capacity = capacity

    @property
    def capacity(self) -> Capacity:
        return self._capacity

    def reset(self) -> None:
        """There is no cache."""

    def execute(self, plan: SchedulerOutput) -> ModelRunnerOutput:
        indices = list(plan.output_indices.values())
        return ModelRunnerOutput(
            plan.step_id,
            plan.generation,
            list(plan.output_indices),
            indices,
            [[index] for index in indices],
        )


async def serve(listen: str, schedulers: tuple[str, ...], capacity: Capacity) -> None:
    worker = StepWorker(InstantRunner(capacity))
    service = ExecutorService(worker, ExecutorIdentity(EXECUTOR_ID, INCARNATION_ID, capacity))
    server = make_server()
    service.add_to(server)
    bind(server, listen)
    await server.start()
    registration = Registration(
        schedulers,
        Announcement(EXECUTOR_ID, INCARNATION_ID, listen),
        epoch_seen=lambda: service.ledger.epoch_seen,
        heartbeat_s=HEARTBEAT_S,
        tls=None,
    )
    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    tasks = [
        asyncio.create_task(registration.run()),
        asyncio.create_task(service.send_alive(HEARTBEAT_S)),
    ]
    gc.collect()
    gc.freeze()
    await stopped.wait()
    for task in tasks:
        task.cancel()
    await server.stop(STOP_GRACE_S)
    worker.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--listen", required=True)
    parser.add_argument("--schedulers", required=True, help="comma separated")
    parser.add_argument("--num-blocks", type=int, default=40_000)
    parser.add_argument("--block-size", type=int, default=16)
    arguments = parser.parse_args()
    capacity = Capacity(arguments.num_blocks, arguments.block_size, vocab_size=VOCAB_SIZE)
    uvloop.run(serve(arguments.listen, tuple(arguments.schedulers.split(",")), capacity))


if __name__ == "__main__":
    main()
