"""A GGUF file's metadata as the config.json and generation_config.json of Hugging Face.

Knows the Llama architecture only. Invariant: a value that the file lacks, or an architecture that
is not known, is refused by name; nothing is guessed.
"""

from __future__ import annotations

from typing import Any

from gguf import GGUFReader

from segue.model_files.model_directory import ModelDirectoryError

MODEL_TYPE_OF_ARCHITECTURE = {"llama": ("llama", "LlamaForCausalLM")}
DIGITS_OF_FLOAT32 = 7


class GGUFMetadata:
    """The key-value pairs of a GGUF file."""

    def __init__(self, reader: GGUFReader) -> None:
        self._reader = reader

    def get(self, key: str) -> Any:
        """None where the file does not have it."""
        field = self._reader.get_field(key)
        return None if field is None else field.contents()

    def require(self, key: str) -> Any:
        value = self.get(key)
        if value is None:
            raise ModelDirectoryError(f"the GGUF file has no {key}")
        return value

    @property
    def architecture(self) -> str:
        return str(self.require("general.architecture"))


def make_config(metadata: GGUFMetadata, *, has_output_weight: bool) -> dict[str, Any]:
    """config.json. Without an output matrix of its own the model uses its embeddings for it."""
    architecture = metadata.architecture
    if architecture not in MODEL_TYPE_OF_ARCHITECTURE:
        known = ", ".join(sorted(MODEL_TYPE_OF_ARCHITECTURE))
        raise ModelDirectoryError(f"GGUF architecture {architecture!r} is not one of: {known}")
    if metadata.get(f"{architecture}.rope.scaling.type") not in (None, "none"):
        raise ModelDirectoryError("GGUF files with scaled RoPE are not supported")
    model_type, class_name = MODEL_TYPE_OF_ARCHITECTURE[architecture]

    def require(name: str) -> Any:
        return metadata.require(f"{architecture}.{name}")

    num_heads = int(require("attention.head_count"))
    hidden_size = int(require("embedding_length"))
    return {
        "architectures": [class_name],
        "model_type": model_type,
        "vocab_size": len(metadata.require("tokenizer.ggml.tokens")),
        "hidden_size": hidden_size,
        "intermediate_size": int(require("feed_forward_length")),
        "num_hidden_layers": int(require("block_count")),
        "num_attention_heads": num_heads,
        "num_key_value_heads": int(require("attention.head_count_kv")),
        "head_dim": int(
            metadata.get(f"{architecture}.rope.dimension_count") or hidden_size // num_heads
        ),
        "hidden_act": "silu",
        "max_position_embeddings": int(require("context_length")),
        "rms_norm_eps": _as_written(require("attention.layer_norm_rms_epsilon")),
        "rope_theta": _as_written(require("rope.freq_base")),
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": not has_output_weight,
        "dtype": "bfloat16",
        **_token_ids(metadata),
    }


def make_generation_config(metadata: GGUFMetadata) -> dict[str, Any]:
    return _token_ids(metadata)


def _token_ids(metadata: GGUFMetadata) -> dict[str, int]:
    names = {"bos": "bos_token_id", "eos": "eos_token_id", "padding": "pad_token_id"}
    found = {
        ours: metadata.get(f"tokenizer.ggml.{theirs}_token_id") for theirs, ours in names.items()
    }
    return {name: int(value) for name, value in found.items() if value is not None}


def _as_written(value: float) -> float:
    """The file holds float32; 9.999999747378752e-06 was written as 1e-05."""
    return float(f"{value:.{DIGITS_OF_FLOAT32}g}")
