// Weights in groups of 32 inputs that share a scale, and how they become bfloat16 again.
//
// Packed: [ceil(N / 16)][K / 32] records, each of sixteen outputs and one group of inputs:
//   8 bits: 16 scales, then int8 [16 pairs of inputs][16 outputs][2]           (544 bytes)
//   4 bits: 16 scales, 16 minima, then uint32 [2 x 8 pairs][2 x 8 outputs][2]  (320 bytes):
//           the nibbles of a word are those of one output and 8 pairs, the first the lowest.
// Scales and minima are float16. A weight is scale * code (+ minimum), computed in float without
// rounding but for the last addition, and rounded once to bfloat16: the same bits on any CPU.
#pragma once

#include "vectors.h"

constexpr int GROUP = 32;

enum class GroupKind { INT8 = 0, Q4_1 = 1 };

constexpr int record_bytes(GroupKind kind) {
  return kind == GroupKind::INT8 ? 2 * LANES + GROUP * LANES : 4 * LANES + GROUP * LANES / 2;
}

// Records of one block of outputs -> [num_groups * 16][16][2], as `segue_pack_linear` packs it.
using Unpack = void (*)(const uint8_t *records, int num_groups, bf16 *out);

Unpack portable_unpack(GroupKind kind);
Unpack avx512_unpack(GroupKind kind);  // where has_avx512_bf16()
