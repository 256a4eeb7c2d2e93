// Products x @ weight.T in bfloat16 with sums in float: packing, cutting into tiles, rounding.
// Knows no instruction set. Invariant: a row's result has the same bits in every batch.
#include "linear.h"

#include <algorithm>

#include "ops.h"
#include "thread_pool.h"

TileProduct multiply_tile = nullptr;

void write_row(bf16 *out, const float *row, const bf16 *bias, int n) {
  int i = 0;
  for (; i + LANES <= n; i += LANES) {
    const f32x16 value = load(row + i);
    store(out + i, bias ? value + load(bias + i) : value);
  }
  if (i == n) return;
  bf16 rest[LANES];
  bf16 rest_of_bias[LANES] = {};
  if (bias) std::copy(bias + i, bias + n, rest_of_bias);
  const f32x16 value = load(row + i);
  store(rest, bias ? value + load(rest_of_bias) : value);
  std::copy(rest, rest + (n - i), out + i);
}

extern "C" {

// 0: any compiler's code, 1: AVX-512 with bfloat16, 2: AMX. False where this machine lacks it.
bool segue_set_linear(int kind) {
  if (kind == 1 && !has_avx512_bf16()) return false;
  if (kind == 2 && !has_amx()) return false;
  multiply_tile = kind == 2 ? multiply_amx : kind == 1 ? multiply_avx512_bf16 : multiply_portably;
  return true;
}

// k is what the weight was padded to.
void segue_linear(const bf16 *x, const bf16 *packed, const bf16 *bias, bf16 *out, int m, int n,
                  int k) {
  const int num_blocks = num_blocks_of(n);
  // For few rows a part reads its weights once; for many, x stays in the cache of each core.
  const int width = m <= LANES ? MAX_TILE_BLOCKS : 2;
  const int num_parts = (num_blocks + width - 1) / width;
  run_parts(num_parts, [&](int part) {
    const int first = part * width, blocks = std::min(width, num_blocks - first);
    float sums[MAX_TILE_ROWS * MAX_TILE_BLOCKS * LANES];
    for (int row = 0; row < m; row += MAX_TILE_ROWS) {
      const int rows = std::min(MAX_TILE_ROWS, m - row);
      multiply_tile(
          {x + (int64_t)row * k, packed + (int64_t)first * k * LANES, rows, blocks, k, sums, k});
      const int column = first * LANES, columns = std::min(n - column, blocks * LANES);
      for (int i = 0; i < rows; i++)
        write_row(out + (int64_t)(row + i) * n + column, sums + i * blocks * LANES,
                  bias ? bias + column : nullptr, columns);
    }
  });
}

// weight [n][k] -> packed [ceil(n / 16)][padded_k / 2][16][2], zeros behind the edges.
void segue_pack_linear(const bf16 *weight, bf16 *packed, int n, int k, int padded_k) {
  run_parts(num_blocks_of(n), [=](int block) {
    bf16 *to = packed + (int64_t)block * padded_k * LANES;
    for (int column = 0; column < padded_k; column++)
      for (int lane = 0; lane < LANES; lane++) {
        const int row = block * LANES + lane;
        const bool is_inside = row < n && column < k;
        to[(column / 2) * 2 * LANES + lane * 2 + column % 2] =
            is_inside ? weight[(int64_t)row * k + column] : 0;
      }
  });
}
}
