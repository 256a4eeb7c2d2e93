// Products x @ weight.T in float, in plain vectors.
// Knows no instruction set. Invariant: an output sums its products in the order of the inputs,
// whatever the rows beside it, so a row's result has the same bits in every batch.
#include <algorithm>

#include "linear.h"
#include "ops.h"
#include "thread_pool.h"

namespace {

// Sums that stay in registers, of those that AVX-512 and others have.
#if defined(__AVX512F__)
constexpr int ROWS = 6, BLOCKS = 4;
#else
constexpr int ROWS = 4, BLOCKS = 1;
#endif
constexpr int PREFETCH_INPUTS = 16;

struct FloatLinear {
  const float *x, *packed, *bias;
  float *out;
  int m, n, k;
};

template <int NUM_ROWS, int NUM_BLOCKS>
void multiply_rows(const FloatLinear &linear, int row, int block) {
  const int64_t k = linear.k;
  const float *x = linear.x + row * k, *weights = linear.packed + block * k * LANES;
  f32x16 sums[NUM_ROWS][NUM_BLOCKS] = {};
  for (int64_t at = 0; at < k; at++) {
    f32x16 weight[NUM_BLOCKS];
    for (int j = 0; j < NUM_BLOCKS; j++) {
      const float *here = weights + (j * k + at) * LANES;
      __builtin_prefetch(here + PREFETCH_INPUTS * LANES);
      weight[j] = load(here);
    }
    for (int i = 0; i < NUM_ROWS; i++)
      for (int j = 0; j < NUM_BLOCKS; j++) sums[i][j] += x[i * k + at] * weight[j];
  }
  for (int i = 0; i < NUM_ROWS; i++)
    for (int j = 0; j < NUM_BLOCKS; j++) {
      const int column = (block + j) * LANES, columns = std::min(LANES, linear.n - column);
      float values[LANES];
      store(values, sums[i][j]);
      float *out = linear.out + (int64_t)(row + i) * linear.n + column;
      for (int lane = 0; lane < columns; lane++)
        out[lane] = linear.bias ? values[lane] + linear.bias[column + lane] : values[lane];
    }
}

template <int NUM_BLOCKS> void multiply_blocks(const FloatLinear &linear, int block) {
  int row = 0;
  for (; row + ROWS <= linear.m; row += ROWS) multiply_rows<ROWS, NUM_BLOCKS>(linear, row, block);
  for (; row + 2 <= linear.m; row += 2) multiply_rows<2, NUM_BLOCKS>(linear, row, block);
  for (; row < linear.m; row++) multiply_rows<1, NUM_BLOCKS>(linear, row, block);
}

}  // namespace

extern "C" {

// weight [n][k] -> packed [ceil(n / 16)][k][16], zeros behind the edge.
void segue_pack_linear_float(const float *weight, float *packed, int n, int k) {
  run_parts(num_blocks_of(n), [=](int block) {
    for (int lane = 0; lane < LANES; lane++) {
      const int row = block * LANES + lane;
      for (int64_t column = 0; column < k; column++)
        packed[(block * (int64_t)k + column) * LANES + lane] =
            row < n ? weight[row * (int64_t)k + column] : 0.0f;
    }
  });
}

void segue_linear_float(const float *x, const float *packed, const float *bias, float *out, int m,
                        int n, int k) {
  const FloatLinear linear{x, packed, bias, out, m, n, k};
  const int num_blocks = num_blocks_of(n);
  run_parts((num_blocks + BLOCKS - 1) / BLOCKS, [&](int part) {
    const int first = part * BLOCKS;
    if (first + BLOCKS <= num_blocks) return multiply_blocks<BLOCKS>(linear, first);
    for (int block = first; block < num_blocks; block++) multiply_blocks<1>(linear, block);
  });
}
}
