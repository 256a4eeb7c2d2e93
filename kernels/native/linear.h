// A tile of x @ weight.T for weights that were packed by `segue_pack_linear`.
//
// Packed layout: [ceil(N / 16)][K / 2][16][2] bfloat16. For sixteen outputs n and one pair of
// inputs k, k + 1 the 32 weights lie together, so that an output sums its products in the order of k
// whatever the tile: that is what makes a row's bits independent of the rows beside it.
#pragma once

#include <algorithm>

#include "vectors.h"

struct Tile {
  const bf16 *x;       // [num_rows][K], rows x_stride apart
  const bf16 *packed;  // of the first of the blocks of outputs
  int num_rows, num_blocks, k;
  float *out;  // [num_rows][num_blocks * 16]
  int64_t x_stride;
  bool continues = false;  // adds to out, which has the sums of the inputs before
};

using TileProduct = void (*)(const Tile &);

// Sizes that each product is fastest with. K is a multiple of K_STEP.
constexpr int K_STEP = 32, MAX_TILE_ROWS = 32, MAX_TILE_BLOCKS = 4;

extern TileProduct multiply_tile;  // the chosen one of these
void multiply_portably(const Tile &tile);
bool has_avx512_bf16();
void multiply_avx512_bf16(const Tile &tile);
bool has_amx();  // and the system lets us use it
void multiply_amx(const Tile &tile);

inline int num_blocks_of(int n) { return (n + LANES - 1) / LANES; }
// A product of more rows than this goes by panels (linear_panel.h).
inline bool has_many_rows(int m) { return m > MAX_TILE_ROWS; }

// Rounds the first n sums of a row, after adding the bias where there is one.
inline void write_row(bf16 *out, const float *row, const bf16 *bias, int n) {
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
