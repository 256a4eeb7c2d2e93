// The tile product with AVX-512's bfloat16 instruction: two products a lane, summed in float.
#include "linear.h"

#if defined(__AVX512BF16__)
#include <immintrin.h>

namespace {

// ROWS * BLOCKS sums, BLOCKS weights and one input stay in registers.
template <int ROWS, int BLOCKS> void multiply_rows(const Tile &tile, int first_row, int first_block) {
  const int64_t k = tile.k;
  const bf16 *x = tile.x + first_row * tile.x_stride;
  const int64_t out_stride = tile.num_blocks * LANES;
  float *out = tile.out + first_row * out_stride + first_block * LANES;
  const bf16 *weights = tile.packed + first_block * k * LANES;
  __m512 sums[ROWS][BLOCKS];
  for (int i = 0; i < ROWS; i++)
    for (int j = 0; j < BLOCKS; j++)
      sums[i][j] =
          tile.continues ? _mm512_loadu_ps(out + i * out_stride + j * LANES) : _mm512_setzero_ps();
  for (int64_t pair = 0; pair < k / 2; pair++) {
    __m512bh weight[BLOCKS];
    for (int j = 0; j < BLOCKS; j++)
      weight[j] = (__m512bh)_mm512_loadu_si512(weights + j * k * LANES + pair * 2 * LANES);
    for (int i = 0; i < ROWS; i++) {
      int32_t inputs;
      std::memcpy(&inputs, x + i * tile.x_stride + pair * 2, sizeof(inputs));
      const __m512bh input = (__m512bh)_mm512_set1_epi32(inputs);
      for (int j = 0; j < BLOCKS; j++) sums[i][j] = _mm512_dpbf16_ps(sums[i][j], input, weight[j]);
    }
  }
  for (int i = 0; i < ROWS; i++)
    for (int j = 0; j < BLOCKS; j++)
      _mm512_storeu_ps(out + i * out_stride + j * LANES, sums[i][j]);
}

template <int BLOCKS> void multiply_blocks(const Tile &tile, int first_block) {
  int row = 0;
  for (; row + 6 <= tile.num_rows; row += 6) multiply_rows<6, BLOCKS>(tile, row, first_block);
  for (; row + 2 <= tile.num_rows; row += 2) multiply_rows<2, BLOCKS>(tile, row, first_block);
  for (; row < tile.num_rows; row++) multiply_rows<1, BLOCKS>(tile, row, first_block);
}

}  // namespace

bool has_avx512_bf16() { return __builtin_cpu_supports("avx512bf16"); }

void multiply_avx512_bf16(const Tile &tile) {
  int block = 0;
  for (; block + 4 <= tile.num_blocks; block += 4) multiply_blocks<4>(tile, block);
  for (; block + 2 <= tile.num_blocks; block += 2) multiply_blocks<2>(tile, block);
  for (; block < tile.num_blocks; block++) multiply_blocks<1>(tile, block);
}

#else

bool has_avx512_bf16() { return false; }
void multiply_avx512_bf16(const Tile &tile) { multiply_portably(tile); }

#endif
