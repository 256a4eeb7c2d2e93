// The tile product with AMX: 16 rows by 16 outputs by 32 inputs an instruction.
#include "linear.h"

#if defined(__AMX_BF16__) && defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>

#include "amx_tiles.h"

namespace {

constexpr int ARCH_REQ_XCOMP_PERM = 0x1023, XFEATURE_XTILEDATA = 18;
constexpr int PREFETCH_TILES = 8;
constexpr int64_t TILE_WEIGHTS = 16 * 32;

inline void prefetch(const bf16 *weights) {
  const char *at = (const char *)(weights + PREFETCH_TILES * TILE_WEIGHTS);
  for (int i = 0; i < 16; i++) _mm_prefetch(at + i * 64, _MM_HINT_T0);
}

// Two blocks of outputs; HAS_LOWER: more than 16 rows.
template <bool HAS_LOWER> void multiply_pair(const Tile &tile, int block) {
  const int64_t k = tile.k, x_stride = tile.x_stride * sizeof(bf16);
  const int64_t columns = tile.num_blocks * LANES, out_stride = columns * sizeof(float);
  float *out = tile.out + block * LANES;
  const bf16 *left = tile.packed + block * k * LANES, *right = left + k * LANES;
  if (tile.continues) {
    _tile_loadd(0, out, out_stride);
    _tile_loadd(1, out + LANES, out_stride);
    if (HAS_LOWER) {
      _tile_loadd(2, out + 16 * columns, out_stride);
      _tile_loadd(3, out + 16 * columns + LANES, out_stride);
    }
  } else {
    _tile_zero(0);
    _tile_zero(1);
    if (HAS_LOWER) {
      _tile_zero(2);
      _tile_zero(3);
    }
  }
  for (int64_t at = 0; at < k; at += 32) {
    prefetch(left + at * LANES);
    prefetch(right + at * LANES);
    _tile_loadd(4, tile.x + at, x_stride);
    _tile_loadd(6, left + at * LANES, TILE_BYTES_OF_ROW);
    _tile_loadd(7, right + at * LANES, TILE_BYTES_OF_ROW);
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    if (HAS_LOWER) {
      _tile_loadd(5, tile.x + 16 * tile.x_stride + at, x_stride);
      _tile_dpbf16ps(2, 5, 6);
      _tile_dpbf16ps(3, 5, 7);
    }
  }
  _tile_stored(0, out, out_stride);
  _tile_stored(1, out + LANES, out_stride);
  if (HAS_LOWER) {
    _tile_stored(2, out + 16 * columns, out_stride);
    _tile_stored(3, out + 16 * columns + LANES, out_stride);
  }
}

void multiply_single(const Tile &tile, int block, bool has_lower) {
  const int64_t k = tile.k, x_stride = tile.x_stride * sizeof(bf16);
  const int64_t columns = tile.num_blocks * LANES, out_stride = columns * sizeof(float);
  float *out = tile.out + block * LANES;
  const bf16 *weights = tile.packed + block * k * LANES;
  if (tile.continues) {
    _tile_loadd(0, out, out_stride);
    if (has_lower) _tile_loadd(2, out + 16 * columns, out_stride);
  } else {
    _tile_zero(0);
    _tile_zero(2);
  }
  for (int64_t at = 0; at < k; at += 32) {
    _tile_loadd(6, weights + at * LANES, TILE_BYTES_OF_ROW);
    _tile_loadd(4, tile.x + at, x_stride);
    _tile_dpbf16ps(0, 4, 6);
    if (has_lower) {
      _tile_loadd(5, tile.x + 16 * tile.x_stride + at, x_stride);
      _tile_dpbf16ps(2, 5, 6);
    }
  }
  _tile_stored(0, out, out_stride);
  if (has_lower) _tile_stored(2, out + 16 * columns, out_stride);
}

}  // namespace

bool has_amx() {
  if (!__builtin_cpu_supports("avx512bf16")) return false;
  return syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0;
}

void multiply_amx(const Tile &tile) {
  const int upper_rows = std::min(tile.num_rows, 16), lower_rows = tile.num_rows - upper_rows;
  configure_tiles(upper_rows, std::max(lower_rows, 1));
  int block = 0;
  for (; block + 2 <= tile.num_blocks; block += 2) {
    if (lower_rows > 0) multiply_pair<true>(tile, block);
    else multiply_pair<false>(tile, block);
  }
  if (block < tile.num_blocks) multiply_single(tile, block, lower_rows > 0);
}

#else

bool has_amx() { return false; }
void multiply_amx(const Tile &tile) { multiply_portably(tile); }

#endif
