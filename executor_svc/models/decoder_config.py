"""What config.json says about a decoder, and what each `model_type` means where it does not say it.

Knows Hugging Face's names and defaults, no tensor. Invariant: a feature that would be computed
wrongly is refused by name, in one line; a key that is missing has the default of transformers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

from executor_svc.layers.rotary import RotaryConfig
from executor_svc.weights import ModelError

FULL, SLIDING = "full_attention", "sliding_attention"
DEFAULT_WINDOW = 4096
DEFAULT_MAX_WINDOW_LAYERS = 28


@dataclass(slots=True, frozen=True)
class ExpertNames:
    """Keys of config.json, and the names of the tensors of a layer's experts."""

    num_experts: str
    intermediate_size: str
    block: str
    gate: str
    up: str
    down: str


@dataclass(slots=True, frozen=True)
class Architecture:
    """What a `model_type` fixes. `has_qkv_bias` None: config.json's attention_bias, all four."""

    has_qkv_bias: bool | None = None
    has_head_norms: bool = False
    experts: ExpertNames | None = None
    always_normalizes_experts: bool = False
    default_window: int = 0  # of every layer, where config.json has no sliding_window
    has_window_flag: bool = False  # use_sliding_window
    windows_upper_layers: bool = False  # those from max_window_layers on


QWEN_EXPERTS = ExpertNames(
    "num_experts", "moe_intermediate_size", "mlp", "gate_proj", "up_proj", "down_proj"
)
MIXTRAL_EXPERTS = ExpertNames(
    "num_local_experts", "intermediate_size", "block_sparse_moe", "w1", "w3", "w2"
)
ARCHITECTURES = {
    "llama": Architecture(),
    "mistral": Architecture(has_qkv_bias=False, default_window=DEFAULT_WINDOW),
    "mixtral": Architecture(
        has_qkv_bias=False, experts=MIXTRAL_EXPERTS, always_normalizes_experts=True
    ),
    "qwen2": Architecture(has_qkv_bias=True, has_window_flag=True, windows_upper_layers=True),
    "qwen3": Architecture(has_head_norms=True, has_window_flag=True, windows_upper_layers=True),
    "qwen3_moe": Architecture(has_head_norms=True, has_window_flag=True, experts=QWEN_EXPERTS),
}
# Those whose windows config.json decides; a llama's sliding_window means nothing to transformers.
WINDOWED = frozenset(ARCHITECTURES) - {"llama"}


@dataclass(slots=True, frozen=True)
class ExpertsConfig:
    names: ExpertNames
    num_experts: int
    num_experts_per_token: int
    intermediate_size: int
    normalizes: bool  # the weights of the chosen experts sum to 1
    is_sparse: tuple[bool, ...]  # of each layer; the others have one dense MLP


@dataclass(slots=True, frozen=True)
class DecoderConfig:
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rms_norm_eps: float
    max_position_embeddings: int
    rotary: RotaryConfig
    has_tied_embeddings: bool
    has_qkv_bias: bool
    has_output_bias: bool
    has_mlp_bias: bool
    has_head_norms: bool  # of queries and keys, before they are rotated
    windows: tuple[int, ...]  # of each layer: how many positions it sees; 0: all
    experts: ExpertsConfig | None


def read_decoder_config(config: dict[str, Any]) -> DecoderConfig:
    """Of config.json. Raises ModelError for what would be computed wrongly."""
    model_type = str(config.get("model_type", "llama"))
    architecture = ARCHITECTURES[model_type]
    _refuse_unsupported(config)
    try:
        return _read(config, model_type, architecture)
    except KeyError as error:
        raise ModelError(f"config.json has no {error.args[0]}") from error
    except (TypeError, ValueError) as error:
        raise ModelError(f"config.json: {error}") from error


def _read(config: dict[str, Any], model_type: str, architecture: Architecture) -> DecoderConfig:
    hidden_size = int(config["hidden_size"])
    num_heads = int(config["num_attention_heads"])
    num_kv_heads = int(config.get("num_key_value_heads") or num_heads)
    if num_heads % num_kv_heads:
        raise ValueError(f"{num_heads} heads can not share {num_kv_heads} key heads")
    head_dim = int(config.get("head_dim") or hidden_size // num_heads)
    num_layers = int(config["num_hidden_layers"])
    max_positions = int(config["max_position_embeddings"])
    scaling: dict[str, Any] = config.get("rope_parameters") or config.get("rope_scaling") or {}
    theta = scaling.get("rope_theta") or config.get("rope_theta") or 10000.0
    attention_bias = bool(config.get("attention_bias", False))
    fixed = architecture.has_qkv_bias
    is_windowed = model_type in WINDOWED
    return DecoderConfig(
        vocab_size=int(config["vocab_size"]),
        hidden_size=hidden_size,
        intermediate_size=int(config["intermediate_size"]),
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        rms_norm_eps=float(config.get("rms_norm_eps", 1e-6)),
        max_position_embeddings=max_positions,
        rotary=RotaryConfig(head_dim, float(theta), max_positions, scaling),
        has_tied_embeddings=bool(config.get("tie_word_embeddings", False)),
        has_qkv_bias=attention_bias if fixed is None else fixed,
        has_output_bias=attention_bias if fixed is None else False,
        has_mlp_bias=bool(config.get("mlp_bias", False)),
        has_head_norms=architecture.has_head_norms,
        windows=_windows(config, architecture, num_layers) if is_windowed else (0,) * num_layers,
        experts=_experts(config, architecture, num_layers),
    )


def _refuse_unsupported(config: dict[str, Any]) -> None:
    activation = config.get("hidden_act", "silu")
    if activation != "silu":
        raise ModelError(f"hidden_act {activation!r} is not silu")
    quantization: object = config.get("quantization_config")
    if quantization:
        method = "unknown"
        if isinstance(quantization, dict):
            method = str(cast("dict[str, Any]", quantization).get("quant_method", method))
        raise ModelError(f"quantization_config: weights quantised by {method!r} are not supported")
    if float(config.get("partial_rotary_factor") or 1.0) != 1.0:
        raise ModelError("partial_rotary_factor: heads rotated in part are not supported")
    for kind in config.get("layer_types") or ():
        if kind not in (FULL, SLIDING):
            raise ModelError(f"layer_types: {kind!r} is not one of {FULL}, {SLIDING}")


def _windows(
    config: dict[str, Any], architecture: Architecture, num_layers: int
) -> tuple[int, ...]:
    window = int(config.get("sliding_window", architecture.default_window) or 0)
    if architecture.has_window_flag:
        window = (window or DEFAULT_WINDOW) if config.get("use_sliding_window") else 0
    kinds: list[str] = config.get("layer_types") or []
    if kinds:
        if len(kinds) != num_layers:
            raise ValueError(f"{len(kinds)} layer_types for {num_layers} layers")
        return tuple(window if kind == SLIDING else 0 for kind in kinds)
    first = 0
    if architecture.windows_upper_layers:
        first = int(config.get("max_window_layers", DEFAULT_MAX_WINDOW_LAYERS))
    return tuple(window if index >= first else 0 for index in range(num_layers))


def _experts(
    config: dict[str, Any], architecture: Architecture, num_layers: int
) -> ExpertsConfig | None:
    names = architecture.experts
    if names is None:
        return None
    dense = set(config.get("mlp_only_layers") or ())
    step = int(config.get("decoder_sparse_step") or 1)
    # transformers writes num_local_experts for any of them since its version 5.
    num_experts = int(config.get("num_local_experts") or config[names.num_experts])
    per_token = int(config["num_experts_per_tok"])
    if not 0 < per_token <= num_experts:
        raise ValueError(f"num_experts_per_tok {per_token} of {num_experts} experts")
    return ExpertsConfig(
        names=names,
        num_experts=num_experts,
        num_experts_per_token=per_token,
        intermediate_size=int(config[names.intermediate_size]),
        normalizes=architecture.always_normalizes_experts
        or bool(config.get("norm_topk_prob", False)),
        is_sparse=tuple(
            index not in dense and (index + 1) % step == 0 for index in range(num_layers)
        ),
    )
