"""The scheduler's ends of the executors' streams: what `executor_client.py` does, on virtual time.

Knows nothing about what is planned. Invariant: what is sent was committed before; the cursor is set
by a handshake and moves only forward.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from scheduler_svc.core.events import (
    ExecutorConnected,
    GenerationEnded,
    LaneOpened,
    LaneRefused,
    ModelOutputReceived,
)
from scheduler_svc.core.lane import Lane
from tests.sim import messages
from tests.sim.settings import EXECUTOR_GRACE_MS, LEASE_TTL_MS, STEP_TIMEOUT_MS
from tests.sim.world import Stream

if TYPE_CHECKING:
    from tests.sim.scheduler import Leader


class ExecutorLink:
    """One stream. `outgoing` is what the pump has put in and the network has not taken yet."""

    def __init__(self, links: ExecutorLinks, executor_id: str, number: int) -> None:
        self._links = links
        self.number = number
        self.epoch = links.leader.core.leader[0]
        self.executor_id = executor_id
        self.sent_step_id: int | None = None
        self.heard_at = links.world.now
        self.has_ended = False
        self.outgoing: list[Any] = []
        self.stream: Stream | None = None

    def receive(self, message: Any) -> None:
        links = self._links
        if self.has_ended:
            return
        self.heard_at = links.world.now
        match message:
            case None:
                links.lost(self)
            case messages.StepResult():
                links.post(ModelOutputReceived(self.executor_id, message.result, links.world.now))
            case messages.ExecutorHelloAck():
                links.greeted(self, message)
            case messages.Refused():
                links.leader.report_higher_epoch(message.epoch_seen)
                links.lost(self)
            case messages.StepFailed():
                cause = f"step {message.step_id} failed"
                links.post(
                    GenerationEnded(self.executor_id, message.generation, cause, links.world.now)
                )
                links.lost(self)
            case _:
                pass


class ExecutorLinks:
    def __init__(self, leader: Leader) -> None:
        self.leader = leader
        self.world = leader.world
        self.streams: dict[str, ExecutorLink] = {}
        self._num_links = 0
        self._dialled: set[str] = set()
        self._absent_since: dict[str, int] = {}
        self._head_since: dict[str, tuple[int, int]] = {}
        self._last_tick = self.world.now

    def post(self, event: Any) -> None:
        self.leader.post_event(event)

    def ready(self) -> list[str]:
        return [e for e, s in self.streams.items() if s.sent_step_id is not None]

    def watch(self) -> None:
        for executor_id, lane in self.leader.core.state.lanes.items():
            if executor_id not in self._dialled and lane.address:
                self._dialled.add(executor_id)
                self._dial(executor_id)

    def send_steps(self) -> None:
        self.watch()
        for executor_id, link in self.streams.items():
            if link.sent_step_id is None:
                continue
            for step in self.leader.core.state.lanes[executor_id].planned:
                if step.plan.step_id > link.sent_step_id:
                    link.outgoing.append(messages.Step(step.body))
                    link.sent_step_id = step.plan.step_id

    def opened(self, reply: LaneOpened) -> None:
        link = self.streams.get(reply.executor_id)
        if link is None or link.number != reply.connection:
            return
        depth = self.leader.core.state.config.depth
        link.outgoing.append(
            messages.Open(reply.generation, reply.next_step_id, reply.results_after_step_id, depth)
        )
        link.sent_step_id = reply.last_step_id

    def refused(self, reply: LaneRefused) -> None:
        link = self.streams.get(reply.executor_id)
        if link is not None and link.number == reply.connection:
            self.lost(link)

    def greeted(self, link: ExecutorLink, ack: messages.ExecutorHelloAck) -> None:
        if link.epoch != self.leader.core.leader[0]:
            self.lost(link)
            return
        self.streams[link.executor_id] = link
        self.post(
            ExecutorConnected(
                link.executor_id,
                ack.incarnation_id,
                ack.generation,
                ack.last_step,
                ack.first_kept_step_id,
                ack.capacity,
                self.world.now,
                link.number,
            )
        )

    def lost(self, link: ExecutorLink) -> None:
        """The stream is of no use any more; a new one is dialled."""
        if link.has_ended:
            return
        link.has_ended = True
        if self.streams.get(link.executor_id) is link:
            del self.streams[link.executor_id]
        if link.stream is not None:
            link.stream.cut()
        delay = self.world.rng.choice((5, 20, 60))
        self.world.after(delay, self.leader.life, lambda: self._dial(link.executor_id))

    def end(self, executor_id: str) -> None:
        link = self.streams.get(executor_id)
        if link is not None:
            self.lost(link)

    def reconnect_all(self) -> None:
        for executor_id in list(self.streams):
            self.end(executor_id)

    def post_losses(self) -> None:
        """Give up lanes that were away too long, and steps without an answer for too long."""
        now = self.world.now
        gap = now - self._last_tick
        self._last_tick = now
        if gap > LEASE_TTL_MS:
            self._absent_since.clear()
            self._head_since.clear()
            for link in self.streams.values():
                link.heard_at = now
            return
        for executor_id, link in list(self.streams.items()):
            if now - link.heard_at > LEASE_TTL_MS:
                self.end(executor_id)
        lanes = [lane for lane in self.leader.core.state.lanes.values() if lane.is_open]
        for lane in lanes:
            self._post_loss(lane, has_other=len(lanes) > 1)

    def _post_loss(self, lane: Lane, *, has_other: bool) -> None:
        executor_id, now = lane.executor_id, self.world.now
        link = self.streams.get(executor_id)
        if link is not None and link.sent_step_id is not None:
            self._absent_since.pop(executor_id, None)
        elif has_other:
            since = self._absent_since.setdefault(executor_id, now)
            if now - since > EXECUTOR_GRACE_MS:
                self.give_up(lane, "its executor is away")
        if not lane.planned:
            self._head_since.pop(executor_id, None)
            return
        head = lane.planned[0].plan.step_id
        step_id, since = self._head_since.get(executor_id, (0, now))
        if step_id != head:
            self._head_since[executor_id] = (head, now)
        elif now - since > STEP_TIMEOUT_MS:
            self.give_up(lane, f"step {head} had no answer in time")

    def give_up(self, lane: Lane, cause: str) -> None:
        assert lane.generation is not None
        self.world.note(f"lane {lane.executor_id} is given up: {cause}")
        self._absent_since.pop(lane.executor_id, None)
        self._head_since.pop(lane.executor_id, None)
        self.leader.cluster.checkers.note_lane_given_up(lane, cause)
        self.post(GenerationEnded(lane.executor_id, lane.generation, cause, self.world.now))
        self.end(lane.executor_id)

    def _dial(self, executor_id: str) -> None:
        leader = self.leader
        executor = leader.cluster.executor_at(leader.core.state.lanes[executor_id].address)
        if executor is None or not executor.life.is_alive:
            delay = self.world.rng.choice((5, 20, 60))
            self.world.after(delay, leader.life, lambda: self._dial(executor_id))
            return
        self._num_links += 1
        link = ExecutorLink(self, executor_id, self._num_links)
        stream = Stream(
            self.world,
            (leader.life, executor.life),
            (link.receive, lambda message: executor.receive(stream, message)),
        )
        link.stream = stream
        epoch, leader_id = leader.core.leader
        stream.send(0, messages.ExecutorHello(epoch, leader_id))
