"""A GGUF file's weights as one model.safetensors in bfloat16, without torch.

Knows both sides' names and GGUF's row order. Invariant: tensors are dequantised one at a time, so
the memory needed is that of the largest; each is rounded to bfloat16 once, to nearest, ties to
even.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt
from gguf import GGUFReader, ReaderTensor
from gguf.quants import dequantize

from segue.model_files.gguf_config import GGUFMetadata
from segue.model_files.model_directory import SAFETENSORS_LENGTH, ModelDirectoryError

BYTES_PER_VALUE = 2
HEADER_ALIGNMENT = 8

NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
# By model_type: the router, and the experts' tensors, which GGUF keeps in one each.
ROUTERS = {"qwen3_moe": "mlp.gate", "mixtral": "block_sparse_moe.gate"}
EXPERT_NAMES = {
    "qwen3_moe": {
        "ffn_gate_exps": "mlp.experts.{}.gate_proj",
        "ffn_up_exps": "mlp.experts.{}.up_proj",
        "ffn_down_exps": "mlp.experts.{}.down_proj",
    },
    "mixtral": {
        "ffn_gate_exps": "block_sparse_moe.experts.{}.w1",
        "ffn_up_exps": "block_sparse_moe.experts.{}.w3",
        "ffn_down_exps": "block_sparse_moe.experts.{}.w2",
    },
}
LAYER_TENSOR = re.compile(r"blk\.(\d+)\.(\w+)\.(weight|bias)")
# What the configuration says already.
NOT_WEIGHTS = frozenset({"rope_freqs.weight"})

Progress = Callable[[int, int], None]


def write_weights(
    reader: GGUFReader, path: Path, config: dict[str, Any], on_progress: Progress
) -> None:
    """Writes the safetensors file. `on_progress` is told the bytes written and their sum."""
    tensors = [tensor for tensor in reader.tensors if tensor.name not in NOT_WEIGHTS]
    is_permuted = GGUFMetadata(reader).architecture.is_permuted
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    total = 0
    for tensor in tensors:
        # GGUF gives the fastest dimension first.
        shape = [int(size) for size in reversed(tensor.shape.tolist())]
        names = hugging_face_names(tensor.name, config)
        own_shape = shape if len(names) == 1 else shape[1:]
        size = int(np.prod(own_shape)) * BYTES_PER_VALUE
        for name in names:  # experts lie one behind the other on both sides
            header[name] = {
                "dtype": "BF16",
                "shape": own_shape,
                "data_offsets": [total, total + size],
            }
            total += size
    encoded = json.dumps(header, separators=(",", ":")).encode()
    encoded += b" " * (-len(encoded) % HEADER_ALIGNMENT)
    written = 0
    with path.open("wb") as file:
        file.write(SAFETENSORS_LENGTH.pack(len(encoded)) + encoded)
        for tensor in tensors:
            values = _dequantized(tensor)
            if is_permuted:
                values = _in_hugging_face_order(tensor.name, values, config)
            written += file.write(to_bfloat16(values).tobytes())
            on_progress(written, total)


def hugging_face_names(name: str, config: dict[str, Any]) -> list[str]:
    """One name, or one for each expert."""
    if name in NAMES:
        return [NAMES[name]]
    match = LAYER_TENSOR.fullmatch(name)
    if match is None:
        raise ModelDirectoryError(f"GGUF tensor {name!r} is not known")
    layer, part, kind = match.groups()
    model_type = config["model_type"]
    prefix = f"model.layers.{layer}."
    if part in LAYER_NAMES:
        return [f"{prefix}{LAYER_NAMES[part]}.{kind}"]
    if part == "ffn_gate_inp" and model_type in ROUTERS:
        return [f"{prefix}{ROUTERS[model_type]}.{kind}"]
    expert = EXPERT_NAMES.get(model_type, {}).get(part)
    if expert is None:
        raise ModelDirectoryError(f"GGUF tensor {name!r} is not known")
    count = int(config["num_local_experts"])
    return [f"{prefix}{expert.format(number)}.{kind}" for number in range(count)]


def to_bfloat16(values: npt.NDArray[np.float32]) -> npt.NDArray[np.uint16]:
    """The upper half of each float32, rounded. Weights hold no NaN, which this would not keep."""
    bits = np.ascontiguousarray(values).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def unpermute(rows: npt.NDArray[np.float32], num_heads: int) -> npt.NDArray[np.float32]:
    """Undoes GGUF's order of the q and k rows, which interleaves the two halves of each head."""
    num_rows = rows.shape[0]
    pairs = rows.reshape(num_heads, num_rows // num_heads // 2, 2, -1)
    return pairs.swapaxes(1, 2).reshape(rows.shape)


def _dequantized(tensor: ReaderTensor) -> npt.NDArray[np.float32]:
    try:
        return cast("npt.NDArray[np.float32]", dequantize(tensor.data, tensor.tensor_type))
    except NotImplementedError as error:
        raise ModelDirectoryError(
            f"GGUF quantisation {tensor.tensor_type.name} of {tensor.name!r} is not supported"
        ) from error


def _in_hugging_face_order(
    name: str, values: npt.NDArray[np.float32], config: dict[str, Any]
) -> npt.NDArray[np.float32]:
    if ".attn_q." in name:
        return unpermute(values, config["num_attention_heads"])
    if ".attn_k." in name:
        return unpermute(values, config["num_key_value_heads"])
    return values
