"""A gateway's process and its clients, by PROTOCOL.md section 5 ("Session").

Knows nothing about HTTP. Invariant (rule 5): it ends the old session before it takes stock of what
was delivered, hands that over, and drops rows below it after comparing them (I8).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from scheduler_svc.core.events import Accepted, Detached, RejectCode, Rejected, Unknown
from scheduler_svc.sessions import NewOutputs, SessionReady
from segue.types import Attachment, Finish, RequestOutput, Submission, TokenLogprobs
from tests.sim import messages
from tests.sim.settings import LEASE_TTL_MS, TICK_MS
from tests.sim.world import Life, Stream, Violation

if TYPE_CHECKING:
    from tests.sim.cluster import Cluster


@dataclass(slots=True, eq=False)
class Client:
    """Who wants the text. `seen` is what it was shown, through whatever gateway."""

    submission: Submission
    gateway: GatewayProcess | None
    seen: list[int] = field(default_factory=list)
    finish: Finish | None = None
    is_rejected: bool = False
    is_gone: bool = False  # it left, or its gateway died and it can not come back
    may_be_aborted: bool = False
    error: str = ""

    @property
    def request_id(self) -> str:
        return self.submission.request_id

    @property
    def is_served(self) -> bool:
        return self.finish is not None or self.is_rejected or self.is_gone or bool(self.error)


@dataclass(slots=True, eq=False)
class Entry:
    """A request of this gateway. `submission` is None until an attachment is answered."""

    client: Client
    submission: Submission | None
    delivered: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    was_accepted: bool = False

    def attachment(self, *, is_finished: bool = False) -> Attachment:
        rows = tuple(self.delivered), tuple(self.logprobs)
        return Attachment(self.client.request_id, *rows, is_finished)


@dataclass(slots=True, eq=False)
class Session:
    number: int
    stream: Stream | None = None
    is_ready: bool = False


class GatewayProcess:
    def __init__(self, cluster: Cluster, gateway_id: str) -> None:
        self.cluster = cluster
        self.world = cluster.world
        self.gateway_id = gateway_id
        self.life = Life(gateway_id, is_alive=False)
        self.num_sessions = 0
        self.entries: dict[str, Entry] = {}
        self.session: Session | None = None
        self.leader_seen = (0, "")

    def start(self) -> None:
        self.life = Life(self.gateway_id)
        self.life.on_death.append(self._on_death)
        self.entries = {}
        self.finished: dict[str, Entry] = {}
        self.session = None
        self.leader_seen = (0, "")
        self._heard_at = self.world.now
        self._connect()
        self._watch()

    def _on_death(self) -> None:
        self.session = None
        for entry in self.entries.values():
            client = entry.client
            if client.gateway is not self:
                continue
            client.may_be_aborted = True
            if client.submission.is_resumable and entry.was_accepted:
                self.cluster.client_returns(client)
            else:
                client.is_gone = True
        self.entries = {}
        self.cluster.restart_later(self.start, self.world.rng.choice((10, 60, 400)))

    # What clients ask for

    def submit(self, clients: list[Client]) -> None:
        for client in clients:
            self.entries[client.request_id] = Entry(client, client.submission)
        if self.session is not None:
            self._send(messages.Submit(tuple(c.submission for c in clients), ()))

    def attach(self, client: Client) -> None:
        client.gateway = self
        entry = self.entries.get(client.request_id)
        if entry is not None:  # it went elsewhere for a while, and missed what has come meanwhile
            for index, token in enumerate(entry.delivered):
                self._show(client, index, token)
            return
        self.entries[client.request_id] = Entry(client, None)
        if self.session is not None:
            self._send(messages.Attach((Attachment(client.request_id),)))

    def leave(self, client: Client) -> None:
        """The client went away. If it is not told now, the next hello says it (H24)."""
        if self.entries.pop(client.request_id, None) is not None and self.session is not None:
            self._send(messages.Abort(client.request_id, "the client left"))

    def submit_again(self, request_id: str) -> None:
        entry = self.entries.get(request_id)
        if entry is not None and entry.submission is not None and self.session is not None:
            self._submit(entry)

    # Sessions

    def _watch(self) -> None:
        if self.session is not None and self.world.now - self._heard_at > LEASE_TTL_MS:
            self.end_session()
        self.world.after(TICK_MS, self.life, self._watch)

    def end_session(self) -> None:
        """First the old session ends, then what was delivered is counted (H17)."""
        session, self.session = self.session, None
        if session is not None and session.stream is not None:
            session.stream.cut()
        self.world.after(self.world.rng.choice((1, 10, 40)), self.life, self._connect)

    def _connect(self) -> None:
        if self.session is not None:
            return
        self.num_sessions += 1
        scheduler = self.cluster.schedulers[self.num_sessions % len(self.cluster.schedulers)]
        if not scheduler.life.is_alive:
            self.world.after(10, self.life, self._connect)
            return
        session = Session(self.num_sessions)
        receive = scheduler.acceptor()
        stream = Stream(
            self.world,
            (self.life, scheduler.life),
            (
                lambda message: self._receive(session, message),
                lambda message: receive(stream, message),
            ),
        )
        session.stream = stream
        self.session = session
        self._heard_at = self.world.now
        known = [entry for entry in self.entries.values() if entry.submission is not None]
        for entry in known:
            if entry.client.gateway is not self:  # it has not noticed that its client moved
                entry.client.may_be_aborted = True
        attachments = tuple(entry.attachment() for entry in known)
        ended = (e for request_id, e in self.finished.items() if request_id not in self.entries)
        attachments += tuple(entry.attachment(is_finished=True) for entry in ended)  # H36
        self._send(
            messages.SessionHello(
                self.gateway_id, str(session.number), self.leader_seen, attachments
            )
        )
        unknown = [e.client.request_id for e in self.entries.values() if e.submission is None]
        if unknown:
            self._send(messages.Attach(tuple(Attachment(r) for r in unknown)))

    def _send(self, message: Any) -> None:
        assert self.session is not None
        assert self.session.stream is not None
        self.session.stream.send(0, message)

    def _receive(self, session: Session, message: Any) -> None:
        if session is not self.session:
            return
        self._heard_at = self.world.now
        match message:
            case None | messages.NotLeader():
                self.end_session()
            case SessionReady():
                self._ready(session, (message.epoch, message.leader_id))
            case NewOutputs():
                self.cluster.checkers.on_outputs_obeyed(self, session, message.epoch)
                for output in message.outputs:
                    self._take(output)
            case Accepted() | Unknown() | Detached() | Rejected():
                self._about_request(message)
            case _:
                pass

    def _ready(self, session: Session, leader: tuple[int, str]) -> None:
        is_other = leader[0] == self.leader_seen[0] and leader[1] != self.leader_seen[1]
        if leader[0] < self.leader_seen[0] or is_other:
            self.end_session()
            return
        self.leader_seen = leader
        session.is_ready = True

    def _about_request(self, message: Accepted | Unknown | Detached | Rejected) -> None:
        entry = self.entries.get(message.request_id)
        if entry is None:
            return
        match message:
            case Accepted():
                entry.was_accepted = True
                entry.submission = message.submission or entry.submission
                if message.next_index > len(entry.delivered):
                    raise Violation(f"I8: {message} goes on behind {len(entry.delivered)}")
            case Unknown():
                self._unknown(entry)
            case Detached():
                self._detached(entry)
            case Rejected():
                del self.entries[message.request_id]
                if entry.was_accepted and message.code is not RejectCode.TOO_LONG:
                    raise Violation(f"I12: {message} though it was accepted before")
                entry.client.is_rejected = True

    def _unknown(self, entry: Entry) -> None:
        if entry.submission is not None:
            self._submit(entry)
            return
        del self.entries[entry.client.request_id]
        self._fail(entry.client, "unknown")

    def _fail(self, client: Client, error: str) -> None:
        client.error = error
        self.cluster.checkers.on_client_error(client, error)

    def _submit(self, entry: Entry) -> None:
        assert entry.submission is not None
        is_again = entry.was_accepted or bool(entry.delivered)
        delivered = (entry.attachment(),) if is_again else ()
        self._send(messages.Submit((entry.submission,), delivered))

    def _detached(self, entry: Entry) -> None:
        """Another gateway has it: if the client is still here, take it back."""
        if entry.client.gateway is self:
            self._send(messages.Attach((entry.attachment(),)))
        else:
            del self.entries[entry.client.request_id]

    def _take(self, output: RequestOutput) -> None:
        request_id = output.request_id
        entry = self.entries.get(request_id) or self.finished.get(request_id)
        if entry is None:
            return
        delivered, first = entry.delivered, output.first_index
        if first > len(delivered):
            raise Violation(f"I8: {request_id} gets row {first} behind {len(delivered)} rows")
        for index, token in enumerate(output.new_token_ids, first):
            if index < len(delivered):
                if delivered[index] != token:
                    raise Violation(f"I8: {request_id} gets another token at {index}")
                continue
            if request_id in self.finished:
                raise Violation(f"I8: {request_id} gets a token behind its end")
            delivered.append(token)
            self._show(entry.client, index, token)
        self._take_logprobs(entry, output)
        if output.finish is not None and request_id in self.entries:
            del self.entries[request_id]
            self.finished[request_id] = entry
            self._finish(entry, output.finish)

    def _take_logprobs(self, entry: Entry, output: RequestOutput) -> None:
        if entry.client.submission.sampling_params.num_logprobs is None:
            return
        if [-row.logprob for row in output.logprobs] != list(output.new_token_ids):
            raise Violation(f"I8: {output.request_id} gets logprobs of other rows")
        num_known = len(entry.logprobs) - output.first_index
        entry.logprobs.extend(output.logprobs[max(0, num_known) :])

    def _show(self, client: Client, index: int, token: int) -> None:
        """A client that came back has seen some of it: a digest tells whether it is the same."""
        if client.gateway is not self or client.error:
            return
        if index < len(client.seen):
            if client.seen[index] != token:
                self._fail(client, "another text")
                self.leave(client)
            return
        client.seen.append(token)

    def _finish(self, entry: Entry, finish: Finish) -> None:
        client = entry.client
        if client.gateway is not self or client.error:
            return
        if len(entry.delivered) < len(client.seen):
            self._fail(client, "less text")
        else:
            client.finish = finish
            self.cluster.checkers.on_finish(client, finish)


def unserved(clients: Iterable[Client]) -> list[Client]:
    return [client for client in clients if not client.is_served]
