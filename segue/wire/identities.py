"""Generations, step keys and capacities as messages. Knows nothing about handshakes.

Invariant: an absent message is None, never a value of zeros.
"""

from __future__ import annotations

from segue.types import Capacity, Generation, StepKey
from segue.v1 import executor_pb2, types_pb2


def generation_to_proto(generation: Generation | None) -> types_pb2.Generation | None:
    if generation is None:
        return None
    return types_pb2.Generation(epoch=generation.epoch, number=generation.number)


def generation_from_proto(message: types_pb2.Generation) -> Generation:
    """Of a field that may be absent, ask `HasField` first."""
    return Generation(message.epoch, message.number)


def step_key_to_proto(key: StepKey | None) -> types_pb2.StepKey | None:
    if key is None:
        return None
    return types_pb2.StepKey(step_id=key.step_id, epoch=key.epoch)


def step_key_from_proto(message: types_pb2.StepKey) -> StepKey:
    return StepKey(message.step_id, message.epoch)


def capacity_to_proto(capacity: Capacity) -> executor_pb2.Capacity:
    return executor_pb2.Capacity(
        num_blocks=capacity.num_blocks,
        block_size=capacity.block_size,
        num_cpu_blocks=capacity.num_cpu_blocks,
        max_model_len=capacity.max_model_len,
        vocab_size=capacity.vocab_size,
    )


def capacity_from_proto(message: executor_pb2.Capacity) -> Capacity:
    return Capacity(
        num_blocks=message.num_blocks,
        block_size=message.block_size,
        num_cpu_blocks=message.num_cpu_blocks,
        max_model_len=message.max_model_len,
        vocab_size=message.vocab_size,
    )
