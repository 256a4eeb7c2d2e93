// Products with weights in groups: a tile of them becomes bfloat16 in the cache of the core that
// needs it, and goes into the same product as weights that always were.
// Knows no instruction set. Invariant: the bits are those of `segue_linear` with these weights.
#include <algorithm>
#include <vector>

#include "groups.h"
#include "linear.h"
#include "thread_pool.h"

namespace {

constexpr int PART_BLOCKS = 2;
// Inputs that are unpacked at a time for few rows, so that they stay in the first cache.
constexpr int CHUNK = 320;

struct Weights {
  const uint8_t *records;
  Unpack unpack;
  int record_size, num_groups;  // of a block

  void unpack_chunk(int block, int blocks, int from, int count, bf16 *out) const {
    for (int i = 0; i < blocks; i++) {
      const int64_t record = (int64_t)(block + i) * num_groups + from / GROUP;
      unpack(records + record * record_size, count / GROUP, out + (int64_t)i * count * LANES);
    }
  }
};

bf16 *scratch(int64_t size) {
  thread_local std::vector<bf16> memory;
  constexpr int64_t ALIGNMENT = 64 / sizeof(bf16);
  if ((int64_t)memory.size() < size + ALIGNMENT) memory.resize(size + ALIGNMENT);
  const uintptr_t at = (uintptr_t)memory.data();
  return (bf16 *)((at + 63) / 64 * 64);
}

}  // namespace

extern "C" {

// As `segue_linear`, with the weights in groups; kind: of GroupKind.
void segue_linear_groups(int kind, const bf16 *x, const uint8_t *records, const bf16 *bias,
                         bf16 *out, int m, int n, int k) {

  const auto group_kind = (GroupKind)kind;
  const Weights weights{records,
                        multiply_tile == multiply_portably ? portable_unpack(group_kind)
                                                           : avx512_unpack(group_kind),
                        record_bytes(group_kind), k / GROUP};
  const int num_blocks = num_blocks_of(n);
  const int chunk = m <= MAX_TILE_ROWS ? std::min(k, CHUNK) : k;
  run_parts((num_blocks + PART_BLOCKS - 1) / PART_BLOCKS, [&](int part) {
    const int first = part * PART_BLOCKS, blocks = std::min(PART_BLOCKS, num_blocks - first);
    const int column = first * LANES, columns = std::min(n - column, blocks * LANES);
    bf16 *unpacked = scratch((int64_t)blocks * chunk * LANES);
    alignas(64) float sums[MAX_TILE_ROWS * PART_BLOCKS * LANES];
    for (int row = 0; row < m; row += MAX_TILE_ROWS) {
      const int rows = std::min(MAX_TILE_ROWS, m - row);
      for (int from = 0; from < k; from += chunk) {
        const int count = std::min(chunk, k - from);
        if (row == 0) weights.unpack_chunk(first, blocks, from, count, unpacked);
        multiply_tile({x + (int64_t)row * k + from, unpacked, rows, blocks, count, sums, k,
                       /*continues=*/from > 0});
      }
      for (int i = 0; i < rows; i++)
        write_row(out + (int64_t)(row + i) * n + column, sums + i * blocks * LANES,
                  bias ? bias + column : nullptr, columns);
    }
  });
}
}
