"""An executor's process: the real step ledger, and a KV cache whose slots can be checked.

A slot holds the hash of all tokens of its request up to its position, so each read shows whether
what it finds is what that position needs (I6). It believes nothing: a plan that contradicts the
fold of the plans before it is a violation (I5). Knows nothing about who schedules.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from executor_svc.step_ledger import LedgerRefused, ProtocolError, StepLedger
from segue.types import (
    Capacity,
    ModelRunnerOutput,
    NewRequestData,
    SamplingParams,
    SchedulerOutput,
    TokenLogprobs,
)
from segue.wire import decode_step
from tests.sim import messages
from tests.sim.settings import TICK_MS
from tests.sim.world import Life, Stream, Violation

if TYPE_CHECKING:
    from tests.sim.cluster import Cluster


class StepError(Exception):
    """The step failed, as a kernel may; injected."""


def repeatable_token(
    chain: int, params: SamplingParams, choice: int, index: int, vocab: int
) -> int:
    """What is sampled at `index` depends on the context and (seed, choice, index), and no more."""
    return hash((chain, params.seed, choice, index)) % vocab


def extend_chain(chain: list[int], tokens: list[int], end: int) -> None:
    """Hashes of the tokens up to each position, for the positions below `end`."""
    last = chain[-1] if chain else 0
    for token in tokens[len(chain) : end]:
        last = hash((last, token))
        chain.append(last)


@dataclass(slots=True)
class Row:
    """A held request. `chain[p]` is the hash of its tokens 0..p."""

    tokens: list[int]
    num_prompt_tokens: int
    num_computed: int
    blocks: list[int]
    params: SamplingParams
    choice: int
    chain: list[int] = field(default_factory=list)
    num_rejected: int = 0  # drafts of its last step: a plan made before that counts them
    num_overcounted: int = 0  # by the plan that runs


Sample = Callable[[Row, int], int]
Draft = Callable[[Row, int], list[int]]


class TokenKV:
    """The memory of one process: request table and KV slots, as one generation may use them."""

    def __init__(self, num_blocks: int, block_size: int, num_cpu_blocks: int = 0) -> None:
        self._block_size = block_size
        self._num_blocks = num_blocks
        self.cpu_slots = [0] * (num_cpu_blocks * block_size)
        self.table: dict[str, Row] = {}
        self.slots = [0] * (num_blocks * block_size)

    def reset(self) -> None:
        self.table = {}
        self.slots = [-1] * len(self.slots)
        self.cpu_slots = [-1] * len(self.cpu_slots)

    def execute(
        self, plan: SchedulerOutput, sample: Sample, draft: Draft | None = None
    ) -> ModelRunnerOutput:
        """Copies first, then all rows are written, then read (H21, H27)."""
        self._copy(plan.swap_out, self.slots, self.cpu_slots)
        self._copy(plan.swap_in, self.cpu_slots, self.slots)
        self._apply(plan)
        for request_id, num_tokens in plan.num_scheduled_tokens.items():
            self._write(request_id, num_tokens - len(plan.draft_token_ids.get(request_id, ())))
        for request_id in plan.num_scheduled_tokens:
            self._read(request_id)
        rows = list(plan.output_indices)
        sampled: list[list[int]] = []
        logprobs: dict[str, list[TokenLogprobs]] = {}
        indices: list[int] = []
        for request_id in rows:
            row = self.table[request_id]
            index = plan.output_indices[request_id] - row.num_overcounted
            num_planned = len(plan.draft_token_ids.get(request_id, ()))
            drafts = draft(row, num_planned) if draft and num_planned else []
            self._write_drafts(request_id, drafts)
            tokens = [self._sample(request_id, index, sample)]
            while len(tokens) <= len(drafts) and drafts[len(tokens) - 1] == tokens[-1]:
                row.num_computed += 1  # its KV was written with the drafts
                extend_chain(row.chain, row.tokens, row.num_computed)
                tokens.append(self._sample(request_id, index + len(tokens), sample))
            row.num_rejected = num_planned - len(tokens) + 1
            indices.append(index)
            sampled.append(tokens)
            if row.params.num_logprobs is not None:
                logprobs[request_id] = [TokenLogprobs(-float(token)) for token in tokens]
        return ModelRunnerOutput(
            plan.step_id, plan.generation, rows, indices, sampled, logprobs=logprobs
        )

    def _copy(self, pairs: list[tuple[int, int]], source: list[int], target: list[int]) -> None:
        size = self._block_size
        copied = [(to * size, source[of * size : (of + 1) * size]) for of, to in pairs]
        for start, slots in copied:
            target[start : start + size] = slots

    def _apply(self, plan: SchedulerOutput) -> None:
        for request_id in (*plan.preempted_req_ids, *plan.finished_req_ids):
            self.table.pop(request_id, None)
        for new in (*plan.scheduled_new_reqs, *plan.scheduled_resumed_reqs):
            self._add(new)
        cached = plan.scheduled_cached_reqs
        for request_id, block_ids, num_computed in zip(
            cached.request_ids, cached.new_block_ids, cached.num_computed_tokens, strict=True
        ):
            row = self.table.get(request_id)
            if row is None:
                raise Violation(f"I5: {request_id} is not held, step {plan.step_id}")
            row.num_overcounted = num_computed - row.num_computed
            if row.num_overcounted not in (0, row.num_rejected):
                raise Violation(
                    f"I5: {request_id} has {row.num_computed} computed, told {num_computed}"
                )
            row.blocks.extend(block_ids)

    def _add(self, new: NewRequestData) -> None:
        if new.request_id in self.table:
            raise Violation(f"I5: {new.request_id} is new, but held already")
        if not new.num_computed_tokens < len(new.token_ids):
            raise Violation(f"I5: {new.request_id} has nothing to compute")
        self.table[new.request_id] = Row(
            list(new.token_ids),
            new.num_prompt_tokens,
            new.num_computed_tokens,
            list(new.block_ids),
            new.sampling_params,
            new.choice,
        )

    def _write(self, request_id: str, num_tokens: int) -> None:
        row, size = self.table.get(request_id), self._block_size
        if row is None:
            raise Violation(f"I5: {request_id} is scheduled, but not held")
        start, end = row.num_computed, row.num_computed + num_tokens
        if num_tokens < 1 or end > len(row.tokens) or end > len(row.blocks) * size:
            raise Violation(
                f"I5: {request_id} is scheduled {start}..{end}: {len(row.tokens)} tokens, "
                f"{len(row.blocks)} blocks"
            )
        extend_chain(row.chain, row.tokens, end)
        for position in range(start, end):
            block = row.blocks[position // size]
            if not 0 <= block < self._num_blocks:
                raise Violation(f"I5: {request_id} has block {block}")
            self.slots[block * size + position % size] = row.chain[position]
        row.num_computed = end

    def _write_drafts(self, request_id: str, drafts: list[int]) -> None:
        """Where the accepted ones will be read, and over what the rejected ones leave."""
        row, size = self.table[request_id], self._block_size
        tokens, chain = [*row.tokens, *drafts], list(row.chain)
        if len(tokens) > len(row.blocks) * size:
            raise Violation(f"I5: {request_id} has drafts and no room for them")
        extend_chain(chain, tokens, len(tokens))
        for position in range(len(row.tokens), len(tokens)):
            self.slots[row.blocks[position // size] * size + position % size] = chain[position]

    def _read(self, request_id: str) -> None:
        row, size = self.table[request_id], self._block_size
        for index in range(-(-row.num_computed // size)):
            first = index * size
            num_read = min(size, row.num_computed - first)
            start = row.blocks[index] * size
            if self.slots[start : start + num_read] != row.chain[first : first + num_read]:
                raise Violation(
                    f"I6: {request_id} reads block {row.blocks[index]} at position {first}"
                )

    def _sample(self, request_id: str, index: int, sample: Sample) -> int:
        row = self.table[request_id]
        behind = row.num_prompt_tokens + index
        if behind != row.num_computed or behind != len(row.tokens):
            raise Violation(
                f"I5: {request_id} samples output {index} behind {row.num_computed} of "
                f"{len(row.tokens)} tokens"
            )
        token = sample(row, index)
        row.tokens.append(token)
        return token


class ExecutorProcess:
    """Started again by the cluster, as another process with the same executor id and address."""

    def __init__(
        self, cluster: Cluster, executor_id: str, num_blocks: int, number: int = 1
    ) -> None:
        self.cluster = cluster
        self.world = cluster.world
        self.executor_id = executor_id
        self.address = f"{executor_id}:{number}"
        self.is_retired = False  # another process has its id, and is the one that is started again
        self.num_blocks = num_blocks
        self.num_starts = 0
        self.fails_next_step = False
        self.row_error_next_step = False
        self.life = Life(executor_id, is_alive=False)

    def start(self) -> None:
        self.num_starts += 1
        self.life = Life(self.executor_id)
        self.life.on_death.append(self._on_death)
        self.incarnation_id = f"{self.world.now:013d}-{self.num_starts}"
        self.ledger = StepLedger()
        settings = self.cluster.settings
        config = settings.engine.scheduler
        self.kv = TokenKV(self.num_blocks, config.block_size, config.num_cpu_blocks)
        self.stream: Stream | None = None
        self.world.note(f"{self.executor_id} starts as {self.incarnation_id}")
        self._heartbeat()

    def _on_death(self) -> None:
        self.cluster.checkers.note_executor_death(self)
        if not self.is_retired:
            self.cluster.restart_later(self.start, self.world.rng.choice((10, 60, 400)))

    def _heartbeat(self) -> None:
        world = self.world
        seen = self.ledger.epoch_seen
        for scheduler in self.cluster.schedulers:
            world.after(
                world.rng.choice((1, 2, 4)),
                scheduler.life,
                lambda s=scheduler: s.register(self.executor_id, self.address, seen),
            )
        if self.stream is not None:
            self.stream.send(1, messages.Alive(seen))
        world.after(TICK_MS, self.life, self._heartbeat)

    def receive(self, stream: Stream, message: Any) -> None:
        try:
            self._handle(stream, message)
        except ProtocolError as error:
            self.world.note(f"{self.executor_id} ends a stream: {error}")
            stream.cut()

    def _handle(self, stream: Stream, message: Any) -> None:
        match message:
            case messages.ExecutorHello():
                self._hello(stream, message)
            case messages.Open():
                self._open(stream, message)
            case messages.Step():
                self._accept(stream, message.body)
            case None:
                if self.stream is stream:
                    self.stream = None
            case _:
                pass

    def _hello(self, stream: Stream, hello: messages.ExecutorHello) -> None:
        token: Hashable = stream
        answer = self.ledger.hello(token, hello.epoch, hello.leader_id)
        if isinstance(answer, LedgerRefused):
            stream.send(1, messages.Refused(answer.epoch_seen))
            return
        self.cluster.checkers.on_answered(self, stream, (hello.epoch, hello.leader_id))
        if self.stream is not None and self.stream is not stream:
            self.stream.cut()
        self.stream = stream
        config = self.cluster.settings.engine.scheduler
        capacity = Capacity(self.num_blocks, config.block_size, config.num_cpu_blocks)
        stream.send(
            1,
            messages.ExecutorHelloAck(
                self.incarnation_id,
                answer.generation,
                answer.last_step,
                answer.first_kept_step_id,
                capacity,
            ),
        )

    def _open(self, stream: Stream, message: messages.Open) -> None:
        kept = self.ledger.open(
            stream,
            message.generation,
            next_step_id=message.next_step_id,
            results_after_step_id=message.results_after_step_id,
            depth=message.depth,
        )
        self.cluster.checkers.on_obeyed(self, stream, f"Open {message.generation}")
        for result in kept:
            stream.send(1, messages.StepResult(result))
        self._send_failure()

    def _accept(self, stream: Stream, body: bytes) -> None:
        plan = decode_step(body)
        if self.ledger.accept(stream, plan):
            self.cluster.checkers.on_accepted(self, stream, plan, body)
            self._start_next()

    def _start_next(self) -> None:
        plan = self.ledger.next_step()
        if plan is None:
            return
        must_reset = self.ledger.take_reset()
        duration = self.world.rng.choice((5, 10, 20, 50))
        self.world.after(duration, self.life, lambda: self._run(plan, must_reset=must_reset))

    def _run(self, plan: SchedulerOutput, *, must_reset: bool) -> None:
        if self.cluster.poison in plan.num_scheduled_tokens:
            self.world.kill(self.life)
            return
        if must_reset:
            self.kv.reset()
        self.cluster.checkers.on_run(self, plan)
        try:
            result = self._execute(plan)
        except StepError as error:
            self.cluster.checkers.note_step_failure(self)
            if self.ledger.fail(plan.step_id, str(error)):
                self._send_failure()
        else:
            counts, stream = self.ledger.finish(result), self.stream
            if counts and stream is not None and self.ledger.is_open_on(stream):
                stream.send(1, messages.StepResult(result))
        self._start_next()

    def _execute(self, plan: SchedulerOutput) -> ModelRunnerOutput:
        if self.fails_next_step:
            self.fails_next_step = False
            raise StepError("injected")
        result = self.kv.execute(plan, self._sample, self._draft)
        if self.row_error_next_step and result.request_ids:
            self.row_error_next_step = False
            return self._with_row_error(result)
        return result

    def _with_row_error(self, result: ModelRunnerOutput) -> ModelRunnerOutput:
        """The first row fails, and no other; its request is never computed here again.

        Its row is there, without a token, as `ModelRunner` has it.
        """
        failed = result.request_ids[0]
        self.cluster.checkers.note_row_error(failed)
        return ModelRunnerOutput(
            result.step_id,
            result.generation,
            result.request_ids,
            result.first_output_indices,
            [[], *result.sampled_token_ids[1:]],
            logprobs={r: rows for r, rows in result.logprobs.items() if r != failed},
            row_errors={failed: "injected"},
        )

    def _sample(self, row: Row, index: int) -> int:
        settings = self.cluster.settings
        if settings.is_sampling_repeatable:
            return repeatable_token(
                row.chain[-1], row.params, row.choice, index, settings.vocab_size
            )
        return self.world.rng.randrange(settings.vocab_size)

    def _draft(self, row: Row, count: int) -> list[int]:
        """Some of them are what will be drawn, where that can be known."""
        vocab, rng = self.cluster.settings.vocab_size, self.world.rng
        tokens, chain = list(row.tokens), list(row.chain)
        for _ in range(rng.randint(0, count)):
            extend_chain(chain, tokens, len(tokens))
            index = len(tokens) - row.num_prompt_tokens
            token = repeatable_token(chain[-1], row.params, row.choice, index, vocab)
            tokens.append(token if rng.random() < 0.7 else rng.randrange(vocab))
        return tokens[len(row.tokens) :]

    def _send_failure(self) -> None:
        failure, stream, generation = self.ledger.failure, self.stream, self.ledger.generation
        if failure is None or stream is None or generation is None:
            return
        if self.ledger.is_open_on(stream):
            stream.send(1, messages.StepFailed(generation, failure.step_id, failure.error))
