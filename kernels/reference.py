"""The specification of every op, in the plainest torch. Faster kernels are held to it by tests.

Knows nothing of ours: no request, no model, no step. Invariant: readable first; what stands here is
what the op means, whatever the device.
"""

from __future__ import annotations

import math
from itertools import pairwise

import torch

from kernels.attention_metadata import AttentionMetadata
from kernels.numpy_bridge import as_ints

PHILOX_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
PHILOX_KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
PHILOX_ROUNDS = 10
MASK_32 = 0xFFFFFFFF


def reshape_and_cache(
    key: torch.Tensor,  # [num_tokens, num_kv_heads, head_dim]
    value: torch.Tensor,  # [num_tokens, num_kv_heads, head_dim]
    key_cache: torch.Tensor,  # [num_blocks, block_size, num_kv_heads, head_dim]
    value_cache: torch.Tensor,  # as key_cache
    slot_mapping: torch.Tensor,  # [num_tokens] int64
) -> None:
    """Writes each token's key and value into its slot, slot s being block s // block_size. What has
    a negative slot fills a batch up on a GPU, and is written nowhere."""
    block_size = key_cache.shape[1]
    for token, slot in enumerate(as_ints(slot_mapping)):
        if slot < 0:
            continue
        key_cache[slot // block_size, slot % block_size] = key[token]
        value_cache[slot // block_size, slot % block_size] = value[token]


def paged_attention(
    query: torch.Tensor,  # [num_tokens, num_heads, head_dim]
    key_cache: torch.Tensor,  # [num_blocks, block_size, num_kv_heads, head_dim]
    value_cache: torch.Tensor,  # as key_cache
    metadata: AttentionMetadata,
    window: int = 0,
    soft_cap: float = 0.0,
) -> torch.Tensor:  # [num_tokens, num_heads, head_dim]
    """Causal attention of a mixed batch over a paged cache, in float32, scaled by 1/sqrt(head_dim).

    Row r's queries are the last tokens of its context; each sees the positions up to its own, or
    the last `window` of them. Scores s become soft_cap * tanh(s / soft_cap) where that is not 0.
    Heads are grouped: query head h reads key head h // (num_heads / num_kv_heads).
    """
    num_heads, head_dim = query.shape[1:]
    group_size = num_heads // key_cache.shape[2]
    output = torch.empty_like(query)
    starts = as_ints(metadata.cu_seqlens_q)
    for row, seq_len in enumerate(as_ints(metadata.seq_lens)):
        start, end = starts[row], starts[row + 1]
        # [seq_len, num_kv_heads, head_dim]
        keys = key_cache[metadata.block_tables[row].long()].flatten(0, 1)[:seq_len].float()
        values = value_cache[metadata.block_tables[row].long()].flatten(0, 1)[:seq_len].float()
        positions = torch.arange(seq_len - (end - start), seq_len)
        is_hidden = torch.arange(seq_len) > positions.unsqueeze(1)
        if window:
            is_hidden |= torch.arange(seq_len) <= positions.unsqueeze(1) - window
        for head in range(num_heads):
            queries = query[start:end, head].float()
            scores = queries @ keys[:, head // group_size].T / math.sqrt(head_dim)
            if soft_cap:
                scores = soft_cap * torch.tanh(scores / soft_cap)
            weights = scores.masked_fill(is_hidden, -math.inf).softmax(dim=-1)
            output[start:end, head] = (weights @ values[:, head // group_size]).to(query.dtype)
    return output


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """x [num_tokens, hidden_size] over the root of its mean square, in float32, times weight.

    The result has the weight's dtype.
    """
    wide = x.float()
    normed = wide * torch.rsqrt((wide * wide).mean(dim=-1, keepdim=True) + eps)
    return normed.to(weight.dtype) * weight


def add_rms_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """(rms_norm(x + residual), x + residual), all [num_tokens, hidden_size].

    The sum has the residual's dtype: x's, or float32, so that what a layer adds is not rounded off.
    """
    added = x + residual
    return rms_norm(added, weight, eps), added


def rotary_embedding(
    x: torch.Tensor,  # [num_tokens, num_heads, head_dim]
    cos: torch.Tensor,  # [num_tokens, head_dim / 2], of x's dtype
    sin: torch.Tensor,  # as cos
) -> torch.Tensor:
    """Rotates the pairs (i, i + head_dim / 2) of each head, Hugging Face's layout."""
    first, second = x.chunk(2, dim=-1)
    cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)


def silu_and_mul(x: torch.Tensor) -> torch.Tensor:
    """x [num_tokens, 2 * n] = gate and up: silu(gate) * up, [num_tokens, n]; silu in float32."""
    gate, up = x.chunk(2, dim=-1)
    wide = gate.float()
    return (wide / (1.0 + torch.exp(-wide))).to(x.dtype) * up


def apply_penalties(
    logits: torch.Tensor,  # [vocab_size] float32, of one row
    prompt_token_ids: list[int],
    output_token_ids: list[int],
    penalties: tuple[float, float, float],  # presence, frequency, repetition
) -> torch.Tensor:
    """Repetition over prompt and output; frequency and presence over the output alone."""
    presence, frequency, repetition = penalties
    logits = logits.clone()
    for token_id in set(prompt_token_ids) | set(output_token_ids):
        logit = logits[token_id]
        logits[token_id] = logit / repetition if logit > 0 else logit * repetition
    for token_id in set(output_token_ids):
        count = output_token_ids.count(token_id)
        logits[token_id] -= frequency * count
        logits[token_id] -= presence
    return logits


def filtered_weights(
    logits: torch.Tensor,  # [vocab_size] float32, of one row
    temperature: float,
    top_k: int,  # 0: off
    top_p: float,
    min_p: float,
) -> torch.Tensor:  # [vocab_size] float64: probabilities up to a factor
    """min_p and top_k, then top_p over what these leave. Ties with a kept token are kept."""
    scaled = logits / temperature
    weights = torch.exp(scaled - scaled.max())
    threshold = torch.tensor(min_p, dtype=torch.float32)  # the best weighs 1
    if top_k:
        threshold = torch.maximum(threshold, weights.sort(descending=True).values[top_k - 1])
    weights = torch.where(weights >= threshold, weights, 0.0).double()
    if top_p < 1.0:
        ordered = weights.sort(descending=True).values
        more_likely = ordered.cumsum(dim=0) - ordered  # how much weighs more than each
        kept = ordered[more_likely < top_p * weights.sum()]
        weights = torch.where(weights >= kept[-1], weights, 0.0)
    return weights


def draw(weights: torch.Tensor, uniform: float) -> int:
    """The first token, in vocabulary order, whose cumulative weight exceeds uniform's share."""
    cumulative = weights.double().cumsum(dim=0)
    return int((cumulative <= uniform * cumulative[-1]).sum())


def philox_uniform(
    seeds: torch.Tensor,  # [n] int64, all 64 bits are used
    choices: torch.Tensor,  # [n] int64, below 2**32
    output_indices: torch.Tensor,  # [n] int64, below 2**32
) -> torch.Tensor:
    """One uniform number in (0, 1) of each (seed, choice, output index): [n] float64.

    Philox 4x32-10 (Salmon et al. 2011), key = the seed's low and high half, counter =
    (output index, choice, 0, 0); the first of the four words w gives (w + 1/2) / 2**32.
    """
    words = [output_indices, choices, torch.zeros_like(seeds), torch.zeros_like(seeds)]
    words = philox_4x32(words, [seeds & MASK_32, (seeds >> 32) & MASK_32])
    return (words[0].double() + 0.5) / 2.0**32


def philox_4x32(counter: list[torch.Tensor], key: list[torch.Tensor]) -> list[torch.Tensor]:
    """Four random words of a counter of four words and a key of two, each [n] int64 < 2**32."""
    words = counter
    for _ in range(PHILOX_ROUNDS):
        high_0, low_0 = _multiply_32(words[0], PHILOX_MULTIPLIERS[0])
        high_1, low_1 = _multiply_32(words[2], PHILOX_MULTIPLIERS[1])
        words = [high_1 ^ words[1] ^ key[0], low_1, high_0 ^ words[3] ^ key[1], low_0]
        key = [(part + step) & MASK_32 for part, step in zip(key, PHILOX_KEY_STEPS, strict=True)]
    return words


def _multiply_32(words: torch.Tensor, factor: int) -> tuple[torch.Tensor, torch.Tensor]:
    """High and low 32 bits of a 64-bit product, without leaving the range of int64."""
    low_part = (words & 0xFFFF) * factor  # below 2**48
    high_part = (words >> 16) * factor + (low_part >> 16)  # below 2**49
    return high_part >> 16, ((high_part & 0xFFFF) << 16) | (low_part & 0xFFFF)


def copy_blocks(
    source: torch.Tensor,  # [num_layers, num_source_blocks, …]
    target: torch.Tensor,  # [num_layers, num_target_blocks, …]
    source_ids: torch.Tensor,  # [num_copies]
    target_ids: torch.Tensor,  # [num_copies]
) -> None:
    """Copies blocks of all layers; no target is a source of the same call."""
    for source_id, target_id in zip(as_ints(source_ids), as_ints(target_ids), strict=True):
        target[:, target_id] = source[:, source_id]


def verify_drafts(
    sampled: torch.Tensor,  # [num_positions] int64: the token drawn at each position
    drafts: torch.Tensor,  # [num_positions] int64: the draft behind it; a row's last means nothing
    starts: torch.Tensor,  # [num_rows + 1] row r's positions: as many as its drafts, and one more
) -> torch.Tensor:  # [num_rows] int32: how many of a row's sampled tokens are given out
    """All sampled tokens up to the first that is not the draft, this one included."""
    bounds = as_ints(starts)
    counts: list[int] = []
    for start, end in pairwise(bounds):
        count = 1
        while count < end - start and sampled[start + count - 1] == drafts[start + count - 1]:
            count += 1
        counts.append(count)
    return torch.tensor(counts, dtype=torch.int32)
