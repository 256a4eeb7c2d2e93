// Products with weights in groups: a tile of them becomes bfloat16 in the cache of the core that
// needs it, and goes into the same product as weights that always were.
// Knows no instruction set. Invariant: the bits are those of `segue_linear` with these weights.
#include "linear_groups.h"

#include <algorithm>
#include <vector>

#include "ops.h"
#include "thread_pool.h"

namespace {

constexpr int PART_BLOCKS = 2;
// Inputs that are unpacked at a time for few rows, so that they stay in the first cache.
constexpr int CHUNK = 320;

bf16 *scratch(int64_t size) {
  thread_local std::vector<bf16> memory;
  constexpr int64_t ALIGNMENT = 64 / sizeof(bf16);
  if ((int64_t)memory.size() < size + ALIGNMENT) memory.resize(size + ALIGNMENT);
  const uintptr_t at = (uintptr_t)memory.data();
  return (bf16 *)((at + 63) / 64 * 64);
}

struct GroupedLinear {
  const bf16 *x, *bias;
  const uint8_t *records;
  bf16 *out;
  int m, n, k, record_size;
  Unpack unpack;
  GroupedProduct product;  // of few rows; null: there is none

  void run(int part) const {
    const int first = part * PART_BLOCKS, blocks = std::min(PART_BLOCKS, num_blocks_of(n) - first);
    if (product && m <= MAX_TILE_ROWS) from_records(first, blocks);
    else unpacked(first, blocks);
  }

  const uint8_t *record(int block, int group) const {
    return records + ((int64_t)block * (k / GROUP) + group) * record_size;
  }

  void from_records(int first, int blocks) const {
    alignas(64) float sums[MAX_TILE_ROWS * PART_BLOCKS * LANES];
    product({x, record(first, 0), record(first + blocks - 1, 0), m, k / GROUP, sums});
    write(sums, PART_BLOCKS * LANES, 0, m, first, blocks);
  }

  void unpacked(int first, int blocks) const {
    const int chunk = m <= MAX_TILE_ROWS ? std::min(k, CHUNK) : k;
    bf16 *weights = scratch((int64_t)blocks * chunk * LANES);
    alignas(64) float sums[MAX_TILE_ROWS * PART_BLOCKS * LANES];
    for (int row = 0; row < m; row += MAX_TILE_ROWS) {
      const int rows = std::min(MAX_TILE_ROWS, m - row);
      for (int from = 0; from < k; from += chunk) {
        const int count = std::min(chunk, k - from);
        for (int i = 0; i < blocks && row == 0; i++)
          unpack(record(first + i, from / GROUP), count / GROUP,
                 weights + (int64_t)i * count * LANES);
        multiply_tile({x + (int64_t)row * k + from, weights, rows, blocks, count, sums, k,
                       /*continues=*/from > 0});
      }
      write(sums, blocks * LANES, row, rows, first, blocks);
    }
  }

  void write(const float *sums, int stride, int row, int rows, int first, int blocks) const {
    const int column = first * LANES, columns = std::min(n - column, blocks * LANES);
    for (int i = 0; i < rows; i++)
      write_row(out + (int64_t)(row + i) * n + column, sums + i * stride,
                bias ? bias + column : nullptr, columns);
  }
};

}  // namespace

extern "C" {

// As `segue_linear`, with the weights in groups; kind: of GroupKind.
void segue_linear_groups(int kind, const bf16 *x, const uint8_t *records, const bf16 *bias,
                         bf16 *out, int m, int n, int k) {
  const auto group_kind = (GroupKind)kind;
  const bool is_portable = multiply_tile == multiply_portably;
  const GroupedLinear linear{x, bias, records, out, m, n, k, record_bytes(group_kind),
                             is_portable ? portable_unpack(group_kind) : avx512_unpack(group_kind),
                             amx_grouped_product(group_kind)};
  const int num_parts = (num_blocks_of(n) + PART_BLOCKS - 1) / PART_BLOCKS;
  run_parts(num_parts, [&](int part) { linear.run(part); });
}
}
