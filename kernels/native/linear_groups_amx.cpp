// Few rows by weights in groups with AMX: while one group is multiplied, the next is unpacked.
// Invariant: the tiles and their order are those of `multiply_amx`, and so are the bits.
#include "linear_groups.h"

#if defined(__AMX_BF16__) && defined(__linux__)
#include <algorithm>

#include "amx_tiles.h"
#include "groups_avx512.h"

namespace {

constexpr int PREFETCH_BYTES = 4096;

template <GroupKind KIND, bool HAS_LOWER> void multiply_pair(const GroupedTile &tile) {
  alignas(64) bf16 unpacked[2][2][GROUP * LANES];  // by turns: left and right outputs
  const uint8_t *left = tile.left, *right = tile.right;
  const auto unpack_next = [&](int turn) {
    prefetch_record<KIND>(left, PREFETCH_BYTES);
    unpack_group<KIND>(left, unpacked[turn][0]);
    left += record_bytes(KIND);
    prefetch_record<KIND>(right, PREFETCH_BYTES);
    unpack_group<KIND>(right, unpacked[turn][1]);
    right += record_bytes(KIND);
  };
  const int64_t k = (int64_t)tile.num_groups * GROUP, x_stride = k * sizeof(bf16);
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  unpack_next(0);
  for (int group = 0; group < tile.num_groups; group++) {
    if (group + 1 < tile.num_groups) unpack_next((group + 1) % 2);
    const bf16 *x = tile.x + group * GROUP, *weights = unpacked[group % 2][0];
    _tile_loadd(4, x, x_stride);
    _tile_loadd(6, weights, TILE_BYTES_OF_ROW);
    _tile_loadd(7, weights + GROUP * LANES, TILE_BYTES_OF_ROW);
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    if (HAS_LOWER) {
      _tile_loadd(5, x + 16 * k, x_stride);
      _tile_dpbf16ps(2, 5, 6);
      _tile_dpbf16ps(3, 5, 7);
    }
  }
  constexpr int64_t COLUMNS = 2 * LANES, OUT_STRIDE = COLUMNS * sizeof(float);
  _tile_stored(0, tile.out, OUT_STRIDE);
  _tile_stored(1, tile.out + LANES, OUT_STRIDE);
  if (HAS_LOWER) {
    _tile_stored(2, tile.out + 16 * COLUMNS, OUT_STRIDE);
    _tile_stored(3, tile.out + 16 * COLUMNS + LANES, OUT_STRIDE);
  }
}

template <GroupKind KIND> void multiply(const GroupedTile &tile) {
  const int upper_rows = std::min(tile.num_rows, 16), lower_rows = tile.num_rows - upper_rows;
  configure_tiles(upper_rows, std::max(lower_rows, 1));
  if (lower_rows > 0) multiply_pair<KIND, true>(tile);
  else multiply_pair<KIND, false>(tile);
}

}  // namespace

GroupedProduct amx_grouped_product(GroupKind kind) {
  if (multiply_tile != multiply_amx) return nullptr;
  return kind == GroupKind::INT8 ? multiply<GroupKind::INT8> : multiply<GroupKind::Q4_1>;
}

#else

GroupedProduct amx_grouped_product(GroupKind) { return nullptr; }

#endif
