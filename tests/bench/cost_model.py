"""How long a step takes on a stated GPU with a stated model, and how many KV blocks it has.

    step = OVERHEAD + max(b * tokens, weights) + c * context + d * swapped bytes

*tokens* are computed in the step, *context* is the KV that its rows read. A roofline: products cost
2 FLOP for each weight and token, but at least one reading of all weights; attention costs reading
its KV. Knows nothing about policies. Invariant: all constants are here, each with its source; what
is assumed says so.
"""

from __future__ import annotations

from dataclasses import dataclass

GIB = 1 << 30


@dataclass(slots=True, frozen=True)
class Gpu:
    """Peak figures of a data sheet."""

    name: str
    memory_bytes: int
    flops: float
    bandwidth: float  # bytes/s
    pcie_bandwidth: float  # bytes/s, one direction


@dataclass(slots=True, frozen=True)
class Model:
    name: str
    num_weights: float
    num_layers: int
    num_kv_heads: int
    head_dim: int

    @property
    def weight_bytes(self) -> float:
        return 2 * self.num_weights  # bfloat16

    @property
    def kv_bytes_per_token(self) -> int:
        return 2 * self.num_layers * self.num_kv_heads * self.head_dim * 2  # keys, values; bfloat16


# NVIDIA, "A100 Tensor Core GPU" data sheet (2021): 40 GB SXM; dense bf16; PCIe gen4 x16.
A100_40GB = Gpu("A100-SXM4-40GB", 40 * GIB, 312e12, 1.555e12, 31.5e9)
# NVIDIA, "H100 Tensor Core GPU" data sheet (2023): 80 GB SXM; dense bf16; PCIe gen5 x16.
H100_80GB = Gpu("H100-SXM5-80GB", 80 * GIB, 989e12, 3.35e12, 64e9)
# config.json of meta-llama/Llama-3.1-8B; 8.03e9 weights by its safetensors index.
LLAMA_8B = Model("Llama-3.1-8B", 8.03e9, 32, 8, 128)


@dataclass(slots=True, frozen=True)
class CostModel:
    """The defaults after `model` are assumptions: round shares of the peaks that engines of this
    kind reach, and what a step costs beside kernels (launches, sampling, a round trip)."""

    gpu: Gpu = A100_40GB
    model: Model = LLAMA_8B
    compute_share: float = 0.55
    bandwidth_share: float = 0.75
    pcie_share: float = 0.8
    overhead_s: float = 0.003
    workspace_bytes: int = 3 * GIB // 2  # activations and CUDA graphs
    block_size: int = 16

    @property
    def token_s(self) -> float:
        return 2 * self.model.num_weights / (self.compute_share * self.gpu.flops)

    @property
    def weights_s(self) -> float:
        return self.model.weight_bytes / (self.bandwidth_share * self.gpu.bandwidth)

    @property
    def context_token_s(self) -> float:
        return self.model.kv_bytes_per_token / (self.bandwidth_share * self.gpu.bandwidth)

    @property
    def block_bytes(self) -> int:
        return self.block_size * self.model.kv_bytes_per_token

    @property
    def swapped_block_s(self) -> float:
        return self.block_bytes / (self.pcie_share * self.gpu.pcie_bandwidth)

    def step_s(self, num_tokens: int, num_context_tokens: int, num_swapped_blocks: int) -> float:
        """Copies are not hidden behind compute, as in V0."""
        return (
            self.overhead_s
            + max(self.token_s * num_tokens, self.weights_s)
            + self.context_token_s * num_context_tokens
            + self.swapped_block_s * num_swapped_blocks
        )

    def num_blocks(self, gpu_memory_utilization: float) -> int:
        """As vLLM counts: a share of the memory, less weights, less what a step needs."""
        kv_bytes = gpu_memory_utilization * self.gpu.memory_bytes
        kv_bytes -= self.model.weight_bytes + self.workspace_bytes
        return max(0, int(kv_bytes // self.block_bytes))
