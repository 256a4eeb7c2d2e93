// The tile product in plain vectors, for any CPU that a compiler knows.
#include "linear.h"

namespace {

template <int ROWS> void multiply_rows(const Tile &tile, int first_row) {
  const int64_t k = tile.k;
  for (int block = 0; block < tile.num_blocks; block++) {
    const bf16 *weights = tile.packed + block * k * LANES;
    const bf16 *x = tile.x + first_row * tile.x_stride;
    float *out = tile.out + (first_row * tile.num_blocks + block) * LANES;
    const int64_t out_stride = tile.num_blocks * LANES;
    f32x16 sums[ROWS] = {};
    if (tile.continues)
      for (int i = 0; i < ROWS; i++) sums[i] = load(out + i * out_stride);
    for (int64_t pair = 0; pair < k / 2; pair++) {
      u32x16 both;
      std::memcpy(&both, weights + pair * 2 * LANES, sizeof(both));
      const f32x16 first = bits_as<f32x16>(both << 16);
      const f32x16 second = bits_as<f32x16>(both & 0xffff0000u);
      for (int i = 0; i < ROWS; i++) {
        uint32_t inputs;
        std::memcpy(&inputs, x + i * tile.x_stride + pair * 2, sizeof(inputs));
        sums[i] += first * bits_as<float>(inputs << 16);
        sums[i] += second * bits_as<float>(inputs & 0xffff0000u);
      }
    }
    for (int i = 0; i < ROWS; i++) store(out + i * out_stride, sums[i]);
  }
}

}  // namespace

void multiply_portably(const Tile &tile) {
  int row = 0;
  for (; row + 4 <= tile.num_rows; row += 4) multiply_rows<4>(tile, row);
  for (; row < tile.num_rows; row++) multiply_rows<1>(tile, row);
}
