"""A GGUF file's metadata as the config.json and generation_config.json of Hugging Face.

Knows llama.cpp's names of the architectures that the executor serves. Invariant: a value that the
file lacks, or an architecture that is not known, is refused by name; nothing is guessed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from gguf import GGUFReader

from segue.model_files.gguf_rope import scaling_of_factors
from segue.model_files.model_directory import ModelDirectoryError

DIGITS_OF_FLOAT32 = 7


@dataclass(slots=True, frozen=True)
class GGUFArchitecture:
    """What a name in `general.architecture` means. `is_permuted`: q and k rows are interleaved."""

    model_type: str
    class_name: str
    is_permuted: bool = False


ARCHITECTURES = {
    "llama": GGUFArchitecture("llama", "LlamaForCausalLM", is_permuted=True),
    "qwen2": GGUFArchitecture("qwen2", "Qwen2ForCausalLM"),
    "qwen3": GGUFArchitecture("qwen3", "Qwen3ForCausalLM"),
    "qwen3moe": GGUFArchitecture("qwen3_moe", "Qwen3MoeForCausalLM"),
}
# llama.cpp calls these llama too, and tells them by their keys.
MISTRAL = GGUFArchitecture("mistral", "MistralForCausalLM", is_permuted=True)
MIXTRAL = GGUFArchitecture("mixtral", "MixtralForCausalLM", is_permuted=True)


class GGUFMetadata:
    """The key-value pairs of a GGUF file, and which tensors it has."""

    def __init__(self, reader: GGUFReader) -> None:
        self._reader = reader
        self.tensor_names = frozenset(tensor.name for tensor in reader.tensors)

    def get(self, key: str) -> Any:
        """None where the file does not have it."""
        field = self._reader.get_field(key)
        try:
            return None if field is None else field.contents()
        except UnicodeDecodeError as error:
            raise ModelDirectoryError(f"the GGUF file's {key} is not UTF-8") from error

    def require(self, key: str) -> Any:
        value = self.get(key)
        if value is None:
            raise ModelDirectoryError(f"the GGUF file has no {key}")
        return value

    def rope_factors(self) -> npt.NDArray[np.float32] | None:
        """By which each rotary frequency is divided, where the file says so in a tensor."""
        for tensor in self._reader.tensors:
            if tensor.name == "rope_freqs.weight":
                return np.asarray(tensor.data, dtype=np.float32)
        return None

    def own(self, name: str) -> Any:
        """The value of a key that begins with the architecture's name; None without it."""
        return self.get(f"{self.architecture_name}.{name}")

    def require_own(self, name: str) -> Any:
        return self.require(f"{self.architecture_name}.{name}")

    @property
    def architecture_name(self) -> str:
        return str(self.require("general.architecture"))

    @property
    def architecture(self) -> GGUFArchitecture:
        name = self.architecture_name
        if name not in ARCHITECTURES:
            known = ", ".join(sorted(ARCHITECTURES))
            raise ModelDirectoryError(f"GGUF architecture {name!r} is not one of: {known}")
        if name == "llama" and self.own("expert_count"):
            return MIXTRAL
        if name == "llama" and self.own("attention.sliding_window"):
            return MISTRAL
        return ARCHITECTURES[name]


def make_config(metadata: GGUFMetadata) -> dict[str, Any]:
    """config.json. Without an output matrix of its own the model uses its embeddings for it."""
    architecture = metadata.architecture
    require = metadata.require_own
    return {
        "architectures": [architecture.class_name],
        "model_type": architecture.model_type,
        "vocab_size": len(metadata.require("tokenizer.ggml.tokens")),
        "hidden_size": int(require("embedding_length")),
        "intermediate_size": int(require("feed_forward_length")),
        "num_hidden_layers": int(require("block_count")),
        "num_attention_heads": int(require("attention.head_count")),
        "num_key_value_heads": int(require("attention.head_count_kv")),
        "head_dim": _head_dim(metadata),
        "hidden_act": "silu",
        "max_position_embeddings": int(require("context_length")),
        "rms_norm_eps": _as_written(require("attention.layer_norm_rms_epsilon")),
        "rope_theta": _as_written(require("rope.freq_base")),
        **_rope_scaling(metadata),
        "attention_bias": architecture.model_type != "qwen2"
        and "blk.0.attn_q.bias" in metadata.tensor_names,
        "mlp_bias": False,
        **_window(metadata),
        **_experts(metadata),
        "tie_word_embeddings": "output.weight" not in metadata.tensor_names,
        "dtype": "bfloat16",
        **_token_ids(metadata),
    }


def make_generation_config(metadata: GGUFMetadata) -> dict[str, Any]:
    return _token_ids(metadata)


def _head_dim(metadata: GGUFMetadata) -> int:
    num_heads = int(metadata.require_own("attention.head_count"))
    rotated = metadata.own("rope.dimension_count")
    default = rotated or int(metadata.require_own("embedding_length")) // num_heads
    head_dim = int(metadata.own("attention.key_length") or default)
    if int(rotated or head_dim) != head_dim:
        raise ModelDirectoryError("GGUF files whose heads are rotated in part are not supported")
    if int(metadata.own("attention.value_length") or head_dim) != head_dim:
        raise ModelDirectoryError("GGUF files with keys and values of two sizes are not supported")
    return head_dim


def _rope_scaling(metadata: GGUFMetadata) -> dict[str, Any]:
    kind = metadata.own("rope.scaling.type") or "none"
    factors = metadata.rope_factors()
    if kind == "linear" and factors is None:
        factor = _as_written(metadata.require_own("rope.scaling.factor"))
        return {"rope_scaling": {"rope_type": "linear", "factor": factor}}
    if kind != "none":
        raise ModelDirectoryError(f"GGUF files with RoPE scaled by {kind!r} are not supported")
    if factors is None:
        return {}
    theta = _as_written(metadata.require_own("rope.freq_base"))
    return {"rope_scaling": scaling_of_factors(factors, theta)}


def _window(metadata: GGUFMetadata) -> dict[str, Any]:
    """A Mistral without a window says so: the default of transformers is another."""
    window = metadata.own("attention.sliding_window")
    if metadata.architecture.model_type in ("mistral", "mixtral"):
        return {"sliding_window": int(window) if window else None}
    if window:
        raise ModelDirectoryError(
            f"GGUF files of {metadata.architecture_name} with a sliding window are not supported"
        )
    return {}


def _experts(metadata: GGUFMetadata) -> dict[str, Any]:
    model_type = metadata.architecture.model_type
    if model_type not in ("mixtral", "qwen3_moe"):
        return {}
    experts = {
        "num_local_experts": int(metadata.require_own("expert_count")),
        "num_experts_per_tok": int(metadata.require_own("expert_used_count")),
    }
    if model_type == "mixtral":
        return experts
    inner = int(metadata.require_own("expert_feed_forward_length"))
    # llama.cpp knows it no other way.
    return experts | {"moe_intermediate_size": inner, "norm_topk_prob": True}


def _token_ids(metadata: GGUFMetadata) -> dict[str, int]:
    names = {"bos": "bos_token_id", "eos": "eos_token_id", "padding": "pad_token_id"}
    found = {
        ours: metadata.get(f"tokenizer.ggml.{theirs}_token_id") for theirs, ours in names.items()
    }
    return {name: int(value) for name, value in found.items() if value is not None}


def _as_written(value: float) -> float:
    """The file holds float32; 9.999999747378752e-06 was written as 1e-05."""
    return float(f"{value:.{DIGITS_OF_FLOAT32}g}")
