"""Drives a ModelRunner as a scheduler would, one plan at a time, and keeps the logits it sees.

Knows how plans are made, not how they are decided. Invariant: it gives blocks to a request once and
never to two, unless a test shares them on purpose.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import torch

from executor_svc.kv_cache import KVCache, KVCacheSpec
from executor_svc.model_loader import load_model
from executor_svc.model_runner import ModelRunner
from executor_svc.models.causal_lm import CausalLM
from kernels import AttentionMetadata, AttentionShape, RowExactLinear
from segue.types import (
    CachedRequestData,
    Generation,
    ModelRunnerOutput,
    NewRequestData,
    SamplingParams,
    SchedulerOutput,
)

GENERATION = Generation(1, 1)
GREEDY = SamplingParams(seed=1, max_tokens=1000, temperature=0.0)


class RecordingModel:
    """A model that keeps the logits it has computed."""

    def __init__(self, model: CausalLM) -> None:
        self._model = model
        self.logits: torch.Tensor | None = None

    @property
    def vocab_size(self) -> int:
        return self._model.vocab_size

    @property
    def max_model_len(self) -> int:
        return self._model.max_model_len

    @property
    def kv_cache_spec(self) -> KVCacheSpec:
        return self._model.kv_cache_spec

    def forward(
        self,
        input_ids: torch.Tensor,
        positions: torch.Tensor,
        kv_cache: KVCache,
        metadata: AttentionMetadata,
    ) -> torch.Tensor:
        return self._model.forward(input_ids, positions, kv_cache, metadata)

    def compute_logits(self, hidden_states: torch.Tensor) -> torch.Tensor:
        logits = self._model.compute_logits(hidden_states)
        self.logits = logits.float().clone()
        return logits

    def products(self) -> dict[str, RowExactLinear]:
        return self._model.products()

    def attention_shape(self, block_size: int) -> AttentionShape | None:
        return self._model.attention_shape(block_size)


@dataclass(slots=True)
class DrivenRequest:
    request_id: str
    token_ids: list[int]
    num_prompt_tokens: int
    params: SamplingParams
    num_computed: int = 0
    block_ids: list[int] = field(default_factory=list)
    is_held: bool = False
    was_held: bool = False


class ExecutorDriver:
    def __init__(
        self,
        model: CausalLM,
        num_blocks: int = 256,
        block_size: int = 16,
        *,
        keeps_logits: bool = True,
    ) -> None:
        self._recording = RecordingModel(model) if keeps_logits else None
        self.kv_cache = KVCache(model.kv_cache_spec, num_blocks, block_size, num_cpu_blocks=4)
        self.model = self._recording or model
        self.runner = ModelRunner(self.model, self.kv_cache)
        self._block_size = block_size
        self._free_blocks = list(range(1, num_blocks))
        self._step_id = 0
        self._preempted: list[str] = []
        self._finished: list[str] = []
        self.requests: dict[str, DrivenRequest] = {}
        # Of each (request, output index), as they came out of the model.
        self.logits: dict[tuple[str, int], torch.Tensor] = {}

    def add(
        self,
        request_id: str,
        prompt: list[int],
        params: SamplingParams = GREEDY,
        shared_with: str | None = None,
        num_shared_blocks: int = 0,
    ) -> None:
        request = DrivenRequest(request_id, list(prompt), len(prompt), params)
        if shared_with is not None:
            request.block_ids = self.requests[shared_with].block_ids[:num_shared_blocks]
            request.num_computed = num_shared_blocks * self._block_size
        self.requests[request_id] = request

    def plan_blocks(self, request_id: str, num_tokens: int) -> None:
        """Gives a request its blocks before it runs, so that others can share them."""
        self._allocate(self.requests[request_id], num_tokens)

    def preempt(self, request_id: str) -> None:
        """By recomputation: its blocks are another's from now on, full of nonsense."""
        request = self.requests[request_id]
        self._preempted.append(request_id)
        self._free_blocks.extend(request.block_ids)
        request.block_ids = []
        request.num_computed = 0
        request.is_held = False

    def new_generation(self) -> None:
        """Nothing is held any more; what runs on is computed again."""
        self.runner.reset()
        for request in self.requests.values():
            self._free_blocks.extend(request.block_ids)
            request.block_ids = []
            request.num_computed = 0
            request.is_held = request.was_held = False

    def finish(self, request_id: str) -> None:
        self._finished.append(request_id)
        self._free_blocks.extend(self.requests.pop(request_id).block_ids)

    def step(self, num_tokens: dict[str, int]) -> ModelRunnerOutput:
        """Schedules so many tokens of each request; who catches up with its tokens samples."""
        output = self.runner.execute(self.plan(num_tokens))
        for index, request_id in enumerate(output.request_ids):
            if self._recording is not None and self._recording.logits is not None:
                key = (request_id, output.first_output_indices[index])
                self.logits[key] = self._recording.logits[index].clone()
            if request_id in self.requests:
                self.requests[request_id].token_ids += output.sampled_token_ids[index]
        return output

    def plan(self, num_tokens: dict[str, int]) -> SchedulerOutput:
        new: list[NewRequestData] = []
        resumed: list[NewRequestData] = []
        cached = CachedRequestData()
        output_indices: dict[str, int] = {}
        for request_id, count in num_tokens.items():
            request = self.requests[request_id]
            added = self._allocate(request, request.num_computed + count)
            if request.is_held:
                cached.request_ids.append(request_id)
                cached.new_block_ids.append(tuple(added))
                cached.num_computed_tokens.append(request.num_computed)
            else:
                (resumed if request.was_held else new).append(_whole(request))
                request.is_held = request.was_held = True
            request.num_computed += count
            if request.num_computed == len(request.token_ids):
                output_indices[request_id] = len(request.token_ids) - request.num_prompt_tokens
        self._step_id += 1
        plan = SchedulerOutput(
            step_id=self._step_id,
            epoch=1,
            generation=GENERATION,
            scheduled_new_reqs=new,
            scheduled_resumed_reqs=resumed,
            scheduled_cached_reqs=cached,
            num_scheduled_tokens=dict(num_tokens),
            output_indices=output_indices,
            preempted_req_ids=self._preempted,
            finished_req_ids=self._finished,
        )
        self._preempted, self._finished = [], []
        return plan

    def prefill(self, request_id: str, chunks: list[int] | None = None) -> None:
        """Of one request alone, in chunks of these sizes, the last of which takes the rest."""
        for chunk in chunks or []:
            self.step({request_id: chunk})
        request = self.requests[request_id]
        self.step({request_id: len(request.token_ids) - request.num_computed})

    def decode(self, request_ids: list[str], num_steps: int) -> None:
        for _ in range(num_steps):
            self.step(dict.fromkeys(request_ids, 1))

    def outputs(self, request_id: str) -> list[int]:
        request = self.requests[request_id]
        return request.token_ids[request.num_prompt_tokens :]

    def _allocate(self, request: DrivenRequest, num_tokens: int) -> list[int]:
        num_blocks = -(-num_tokens // self._block_size)
        num_added = max(0, num_blocks - len(request.block_ids))
        added, self._free_blocks = self._free_blocks[:num_added], self._free_blocks[num_added:]
        assert len(added) == num_added, "the test needs more blocks"
        request.block_ids += added
        return added


def _whole(request: DrivenRequest) -> NewRequestData:
    return NewRequestData(
        request_id=request.request_id,
        token_ids=tuple(request.token_ids),
        num_prompt_tokens=request.num_prompt_tokens,
        num_computed_tokens=request.num_computed,
        block_ids=tuple(request.block_ids),
        sampling_params=request.params,
    )


def make_driver(model_dir: Path, dtype: str, block_size: int = 16) -> ExecutorDriver:
    return ExecutorDriver(load_model(model_dir, dtype), block_size=block_size)
