// The tile product in plain vectors, for any CPU that a compiler knows.
#include "linear.h"

namespace {

template <int ROWS> void multiply_rows(const Tile &tile, int first_row) {
  const int64_t k = tile.k;
  for (int block = 0; block < tile.num_blocks; block++) {
    const bf16 *weights = tile.packed + block * k * LANES;
    const bf16 *x = tile.x + first_row * k;
    f32x16 sums[ROWS] = {};
    for (int64_t pair = 0; pair < k / 2; pair++) {
      u32x16 both;
      std::memcpy(&both, weights + pair * 2 * LANES, sizeof(both));
      const f32x16 first = bits_as<f32x16>(both << 16);
      const f32x16 second = bits_as<f32x16>(both & 0xffff0000u);
      for (int i = 0; i < ROWS; i++) {
        uint32_t inputs;
        std::memcpy(&inputs, x + i * k + pair * 2, sizeof(inputs));
        sums[i] += first * bits_as<float>(inputs << 16);
        sums[i] += second * bits_as<float>(inputs & 0xffff0000u);
      }
    }
    for (int i = 0; i < ROWS; i++)
      store(tile.out + ((first_row + i) * tile.num_blocks + block) * LANES, sums[i]);
  }
}

}  // namespace

void multiply_portably(const Tile &tile) {
  int row = 0;
  for (; row + 4 <= tile.num_rows; row += 4) multiply_rows<4>(tile, row);
  for (; row < tile.num_rows; row++) multiply_rows<1>(tile, row);
}
