// A panel by tiles of whatever instructions were chosen.
// Knows no instruction set. Invariant: a row's bits are those of the tile product alone.
#include "linear_panel.h"

#include <algorithm>

namespace {

void multiply_rows(const Panel &panel, const PanelWriter &writer, int first_row, int num_rows) {
  alignas(64) float sums[MAX_TILE_ROWS * 2 * LANES];
  const int k = panel.k;
  const bf16 *x = panel.x + (int64_t)first_row * k;
  const bool is_one_tile = panel.right == panel.left + (int64_t)k * LANES;
  const int stride = is_one_tile ? 2 * LANES : LANES;
  float *right_sums = is_one_tile ? sums + LANES : sums + num_rows * LANES;
  multiply_tile({x, panel.left, num_rows, is_one_tile ? 2 : 1, k, sums, k});
  if (!is_one_tile) multiply_tile({x, panel.right, num_rows, 1, k, right_sums, k});
  for (int i = 0; i < num_rows; i++)
    writer.write(first_row + i, sums + i * stride, right_sums + i * stride);
}

}  // namespace

void multiply_panel(const Panel &panel, const PanelWriter &writer) {
  for (int row = multiply_panel_amx(panel, writer); row < panel.num_rows; row += MAX_TILE_ROWS)
    multiply_rows(panel, writer, row, std::min(MAX_TILE_ROWS, panel.num_rows - row));
}
