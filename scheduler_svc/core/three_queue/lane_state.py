"""The three queues of a lane, and moving requests between them: preempt, release, finish.

Knows nothing about budgets or steps. Invariant: between two calls, who runs has GPU blocks, who is
swapped has CPU blocks, who waits has none; each stands in one queue.
"""

from __future__ import annotations

from scheduler_svc.core.journal import Journal
from scheduler_svc.core.request import QueueName, Request, RequestStatus
from scheduler_svc.core.three_queue.block_tables import BlockTables, EngineFailure
from scheduler_svc.core.three_queue.config import ThreeQueueConfig
from scheduler_svc.core.three_queue.ranked_queue import RankedQueue
from scheduler_svc.core.three_queue.step_draft import PreemptionMode, StepDraft


class LaneState:
    """`finished_ids` and `preempted_ids` are to be announced with the next step.

    `clock_ms` is the time of the step that is planned, as far as this lane was told.
    """

    def __init__(self, config: ThreeQueueConfig, journal: Journal) -> None:
        self.config = config
        self.journal = journal
        self.tables = BlockTables(config, journal)
        self.waiting = RankedQueue(QueueName.WAITING, journal)
        self.running = RankedQueue(QueueName.RUNNING, journal)
        self.swapped = RankedQueue(QueueName.SWAPPED, journal)
        self.finished_ids: list[str] = []
        self.preempted_ids: list[str] = []
        self.num_tokens_given_back = 0
        self.clock_ms = 0
        self._has_ended_running = False

    # While a step is planned; the pass puts the victim into its queue

    def preempt(self, victim: Request, draft: StepDraft) -> PreemptionMode:
        """Take what the victim holds: swapped out if that is wanted, else to be recomputed.

        V0 fails where the CPU has no room; then it is recomputed here, unless `strict`.
        """
        if not self.config.swaps or not self._has_cpu_room(victim):
            self.recompute(victim)
            return PreemptionMode.RECOMPUTE
        assert victim.num_in_flight_tokens == 0  # one step at a time (H27)
        draft.swap_out += self.tables.swap_out(victim)
        victim.status = RequestStatus.SWAPPED
        self._note_preemption(victim)
        return PreemptionMode.SWAP

    def recompute(self, victim: Request, *, drop_output: bool = False) -> None:
        """Free what the request holds; it starts again from its first token."""
        self._forget_progress(victim, drop_output=drop_output)
        victim.status = RequestStatus.PREEMPTED
        self._note_preemption(victim)

    def _has_cpu_room(self, victim: Request) -> bool:
        if self.tables.can_swap_out(victim):
            return True
        if self.config.strict:
            raise EngineFailure(f"no room on the CPU to swap out {victim.request_id}")
        return False

    def _note_preemption(self, victim: Request) -> None:
        victim.num_preemptions += 1
        self.preempted_ids.append(victim.request_id)
        self.journal.requests[victim.request_id] = victim

    def settle_queues(self) -> None:
        """Write down the order that a step's passes have left."""
        for queue in (self.waiting, self.running, self.swapped):
            queue.settle()

    def end_in_batch(self, request: Request) -> None:
        """A request has ended by its tokens: its blocks go at once, it leaves with the others.

        One that was preempted since then leaves at once.
        """
        if request.queue is QueueName.RUNNING:
            self.tables.free(request)
            self.journal.requests[request.request_id] = request
            self._has_ended_running = True
        else:
            self.leave(request)

    def end_batch(self) -> None:
        """Those that have ended leave `running`, in its order."""
        if not self._has_ended_running:
            return
        self._has_ended_running = False
        ended = [request for request in self.running if request.is_finished]
        self.running.replace([request for request in self.running if not request.is_finished])
        for request in ended:
            request.queue = None
            self.finished_ids.append(request.request_id)

    # Between steps

    def recompute_all(self, *, drop_output: bool = False) -> None:
        """Who runs, then who is swapped out, to the head of those that wait, in this order."""
        for queue in (self.swapped, self.running):
            while queue:
                victim = queue.pop_last()
                self.recompute(victim, drop_output=drop_output)
                self.waiting.prepend(victim)

    def release(self, request: Request) -> None:
        """Take a request out of whatever queue it is in; its output in flight is dropped."""
        if request.queue in (QueueName.RUNNING, QueueName.SWAPPED):
            self._note_preemption(request)
        self._remove(request)
        self._forget_progress(request, drop_output=True)
        request.drains_elsewhere = request.num_in_flight_tokens > 0
        self.journal.requests[request.request_id] = request

    def leave(self, request: Request) -> None:
        """Take a request that has ended out of its queue, free its blocks and announce it."""
        self._remove(request)
        self.free(request)
        self.finished_ids.append(request.request_id)

    def free(self, request: Request) -> None:
        """Free the blocks of a request that has ended, and that stands in no queue."""
        request.queue = None
        self.tables.free(request)
        self.journal.requests[request.request_id] = request

    def _remove(self, request: Request) -> None:
        for queue in (self.waiting, self.running, self.swapped):
            if request.queue is queue.name:
                queue.remove(request)
        request.queue = None

    def _forget_progress(self, request: Request, *, drop_output: bool) -> None:
        """Output in flight becomes stale: taken when it comes, unless it is to be dropped."""
        self.tables.free(request)
        self.num_tokens_given_back += request.num_computed_tokens
        request.num_computed_tokens = 0
        request.is_prefill_chunk = False
        is_in_flight = request.num_in_flight_tokens > 0
        has_dropped_share = request.drop_stale_output and request.num_stale_output_tokens > 0
        request.num_stale_output_tokens = request.num_in_flight_tokens
        request.drop_stale_output = is_in_flight and (drop_output or has_dropped_share)
