// Products x @ weight.T in bfloat16 with sums in float: packing, cutting into tiles, rounding.
// Knows no instruction set. Invariant: a row's result has the same bits in every batch.
#include "linear.h"

#include <algorithm>

#include "linear_panel.h"
#include "ops.h"
#include "thread_pool.h"

TileProduct multiply_tile = nullptr;

namespace {

struct Packed {
  const bf16 *weight;
  int k;

  const bf16 *block(int index) const { return weight + (int64_t)index * k * LANES; }

  // `ahead` blocks further is what this core takes next, if no other does; 0: nothing is.
  Panel panel(const bf16 *x, int m, int left, int right, int ahead) const {
    const bool has_next = ahead > 0;
    return {x, block(left), block(right), m, k, has_next ? block(left + ahead) : nullptr,
            has_next ? block(right + ahead) : nullptr};
  }
};

// Blocks of a tile of up to MAX_TILE_ROWS rows.
int tile_width(int m) { return m <= LANES ? MAX_TILE_BLOCKS : 2; }

void multiply_many_rows(const bf16 *x, const Packed &packed, const bf16 *bias, bf16 *out, int m,
                        int n) {
  const int num_blocks = num_blocks_of(n), ahead = 2 * num_threads();
  run_parts((num_blocks + 1) / 2, [&](int part) {
    const int left = 2 * part, right = std::min(left + 1, num_blocks - 1);
    multiply_panel(packed.panel(x, m, left, right, right + ahead < num_blocks ? ahead : 0),
                   side_by_side(out, bias, left * LANES, n));
  });
}

// Some blocks of gates and then, as many, what they let through.
void gate_few_rows(const bf16 *x, const Packed &packed, const bf16 *bias, bf16 *out, int m, int n) {
  const int num_blocks = n / LANES, width = tile_width(m);
  run_parts((num_blocks + width - 1) / width, [&](int part) {
    const int first = part * width, blocks = std::min(width, num_blocks - first);
    alignas(64) float gates[MAX_TILE_ROWS * MAX_TILE_BLOCKS * LANES];
    alignas(64) float ups[MAX_TILE_ROWS * MAX_TILE_BLOCKS * LANES];
    multiply_tile({x, packed.block(first), m, blocks, packed.k, gates, packed.k});
    multiply_tile({x, packed.block(num_blocks + first), m, blocks, packed.k, ups, packed.k});
    for (int block = 0; block < blocks; block++) {
      const PanelWriter writer = gated(out, bias, (first + block) * LANES, n);
      for (int row = 0; row < m; row++) {
        const int at = (row * blocks + block) * LANES;
        writer.write(row, gates + at, ups + at);
      }
    }
  });
}

}  // namespace

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
  if (has_many_rows(m)) return multiply_many_rows(x, {packed, k}, bias, out, m, n);
  const int num_blocks = num_blocks_of(n);
  const int width = tile_width(m);
  run_parts((num_blocks + width - 1) / width, [&](int part) {
    const int first = part * width, blocks = std::min(width, num_blocks - first);
    alignas(64) float sums[MAX_TILE_ROWS * MAX_TILE_BLOCKS * LANES];
    multiply_tile({x, packed + (int64_t)first * k * LANES, m, blocks, k, sums, k});
    const int column = first * LANES, columns = std::min(n - column, blocks * LANES);
    for (int row = 0; row < m; row++)
      write_row(out + (int64_t)row * n + column, sums + row * blocks * LANES,
                bias ? bias + column : nullptr, columns);
  });
}

bool segue_gated_linear(const bf16 *x, const bf16 *packed, const bf16 *bias, bf16 *out, int m,
                        int n, int k) {
  if (!has_many_rows(m)) return gate_few_rows(x, {packed, k}, bias, out, m, n), true;
  // The other products are quicker by two blocks that lie together.
  if (multiply_tile != multiply_amx) return false;
  const int num_blocks = n / LANES, ahead = num_threads();
  run_parts(num_blocks, [&](int gate) {
    multiply_panel(Packed{packed, k}.panel(x, m, gate, gate + num_blocks,
                                           gate + ahead < num_blocks ? ahead : 0),
                   gated(out, bias, gate * LANES, n));
  });
  return true;
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
