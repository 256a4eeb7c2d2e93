"""A GGUF file's weights as one model.safetensors in bfloat16, without torch.

Knows the Llama names and GGUF's row order. Invariant: tensors are dequantised one at a time, so the
memory needed is that of the largest; each is rounded to bfloat16 once, to nearest, ties to even.
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
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
LAYER_TENSOR = re.compile(r"blk\.(\d+)\.(\w+)\.weight")

Progress = Callable[[int, int], None]


def write_weights(
    reader: GGUFReader, path: Path, config: dict[str, Any], on_progress: Progress
) -> None:
    """Writes the safetensors file. `on_progress` is told the bytes written and their sum."""
    named = [(hugging_face_name(tensor.name), tensor) for tensor in reader.tensors]
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    total = 0
    for name, tensor in named:
        # GGUF gives the fastest dimension first.
        shape = [int(size) for size in reversed(tensor.shape.tolist())]
        size = int(np.prod(shape)) * BYTES_PER_VALUE
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [total, total + size]}
        total += size
    encoded = json.dumps(header, separators=(",", ":")).encode()
    encoded += b" " * (-len(encoded) % HEADER_ALIGNMENT)
    with path.open("wb") as file:
        file.write(SAFETENSORS_LENGTH.pack(len(encoded)) + encoded)
        for name, tensor in named:
            values = _in_hugging_face_order(name, _dequantized(tensor), config)
            file.write(to_bfloat16(values).tobytes())
            on_progress(header[name]["data_offsets"][1], total)


def hugging_face_name(name: str) -> str:
    if name in NAMES:
        return NAMES[name]
    match = LAYER_TENSOR.fullmatch(name)
    if match is None or match[2] not in LAYER_NAMES:
        raise ModelDirectoryError(f"GGUF tensor {name!r} is not known")
    return f"model.layers.{match[1]}.{LAYER_NAMES[match[2]]}.weight"


def to_bfloat16(values: npt.NDArray[np.float32]) -> npt.NDArray[np.uint16]:
    """The upper half of each float32, rounded. Weights hold no NaN, which this would not keep."""
    bits = np.ascontiguousarray(values).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def unpermute(rows: npt.NDArray[np.float32], num_heads: int) -> npt.NDArray[np.float32]:
    """Undoes GGUF's order of the q and k rows, which interleaves the two halves of each head."""
    num_rows, hidden_size = rows.shape
    pairs = rows.reshape(num_heads, num_rows // num_heads // 2, 2, hidden_size)
    return pairs.swapaxes(1, 2).reshape(num_rows, hidden_size)


def _dequantized(tensor: ReaderTensor) -> npt.NDArray[np.float32]:
    return cast("npt.NDArray[np.float32]", dequantize(tensor.data, tensor.tensor_type))


def _in_hugging_face_order(
    name: str, values: npt.NDArray[np.float32], config: dict[str, Any]
) -> npt.NDArray[np.float32]:
    if name.endswith("q_proj.weight"):
        return unpermute(values, config["num_attention_heads"])
    if name.endswith("k_proj.weight"):
        return unpermute(values, config["num_key_value_heads"])
    return values
