"""The queues of a `unified` lane, and moving requests between them: preempt, release, finish.

Knows nothing about budgets or steps. Invariant: a request stands in one queue at most; whoever
leaves `running` other than by moving back to the waiting queue has given back its blocks, unless a
transfer still reads or writes them.
"""

from __future__ import annotations

from collections.abc import Callable

from scheduler_svc.core.journal import Journal
from scheduler_svc.core.kv_cache_manager import CacheListener, KVCacheManager
from scheduler_svc.core.request import BLOCKED_STATUS, QueueName, Request, RequestStatus
from scheduler_svc.core.request_queue import RequestQueue
from scheduler_svc.core.scheduler_config import SchedulerConfig


class LaneState:
    """`finished_ids` and `preempted_ids` are to be announced with the next step.

    `in_flight`: who is in each step that this process planned, for its result to find them at once.

    Features may hook in: `left` is called for each request that gives up its blocks, `free_blocks`
    may free them later, `keeps_blocks` says whether a request that ends holds them for a transfer.
    """

    def __init__(
        self,
        config: SchedulerConfig,
        journal: Journal,
        make_queue: Callable[[QueueName], RequestQueue],
        listener: CacheListener | None = None,
    ) -> None:
        self.config = config
        self.journal = journal
        self.kv = KVCacheManager(config, journal, listener)
        self.waiting = make_queue(QueueName.WAITING)
        self.holding = make_queue(QueueName.HOLDING)
        self.running: list[Request] = []
        self.in_flight: dict[int, list[Request]] = {}
        self.finished_ids: list[str] = []
        self.preempted_ids: list[str] = []
        self.num_tokens_given_back = 0
        self.left: list[Callable[[Request], None]] = []
        self.free_blocks: Callable[[Request], None] = self.kv.free
        self.keeps_blocks: Callable[[Request], bool] = _keeps_nothing

    def queue_of(self, request: Request) -> RequestQueue:
        return self.holding if request.queue is QueueName.HOLDING else self.waiting

    def queue_for(self, request: Request) -> RequestQueue:
        return self.holding if request.block_ids else self.waiting

    def add_waiting(self, request: Request) -> None:
        request.is_deferred = request.status in BLOCKED_STATUS
        self.queue_for(request).add(request)

    def prepend_waiting(self, request: Request) -> None:
        self.queue_for(request).prepend(request)

    def start_running(self, request: Request) -> None:
        rank = self.running[-1].queue_rank + 1 if self.running else 0
        request.queue, request.queue_rank = QueueName.RUNNING, rank
        request.status = RequestStatus.RUNNING
        request.is_deferred = False
        self.running.append(request)
        self.journal.requests[request.request_id] = request

    def preempt(self, request: Request, *, drop_output: bool = False) -> None:
        """Free the blocks of a request that was taken out of `running`; to the head of waiting.

        Its output in flight becomes stale: delivered when it comes, unless it is to be dropped, or
        a dropped share is in flight already (specification 8).
        """
        self._forget_progress(request, drop_output=drop_output)
        request.num_preemptions += 1
        request.status = RequestStatus.PREEMPTED
        request.queue = None
        self.preempted_ids.append(request.request_id)
        self.waiting.prepend(request)

    def release(self, request: Request) -> None:
        """Take a request out of whatever queue it is in; its output in flight is dropped."""
        if request.queue is QueueName.RUNNING:
            self.running.remove(request)
            self.preempted_ids.append(request.request_id)
            request.num_preemptions += 1
        elif request.queue is not None:
            self.queue_of(request).remove(request)
        self._forget_progress(request, drop_output=True)
        request.drains_elsewhere = request.num_in_flight_tokens > 0
        request.queue = None
        self.journal.requests[request.request_id] = request

    def stop_loading(self, request: Request) -> None:
        """A request that waits with blocks gives them up, and waits without."""
        self.holding.remove(request)
        self._forget_progress(request, drop_output=False)
        is_resumed = request.num_preemptions > 0
        request.status = RequestStatus.PREEMPTED if is_resumed else RequestStatus.WAITING
        self.waiting.prepend(request)

    def leave(self, request: Request) -> None:
        """Take a request that has ended out of its queue, free its blocks and announce it."""
        if request.queue is QueueName.RUNNING:
            self.running.remove(request)
        elif request.queue is not None:
            self.queue_of(request).remove(request)
        self.free_finished(request)

    def free_finished(self, request: Request) -> None:
        request.queue = None
        request.is_deferred = False
        if not self.keeps_blocks(request):
            self.free_blocks(request)
        for left in self.left:
            left(request)
        self.finished_ids.append(request.request_id)
        self.journal.requests[request.request_id] = request

    def _forget_progress(self, request: Request, *, drop_output: bool) -> None:
        self.free_blocks(request)
        for left in self.left:
            left(request)
        self.num_tokens_given_back += request.num_computed_tokens
        request.num_computed_tokens = 0
        request.num_output_placeholders = 0
        request.is_prefill_chunk = False
        request.spec_token_ids = []
        has_dropped_share = request.drop_stale_output and request.num_stale_output_tokens > 0
        request.num_stale_output_tokens = request.num_in_flight_tokens
        request.drop_stale_output = request.num_in_flight_tokens > 0 and (
            drop_output or has_dropped_share or self.config.drop_stale_output_on_preemption
        )


def _keeps_nothing(request: Request) -> bool:
    del request
    return False
