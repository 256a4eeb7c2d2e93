// Products with weights in groups: a tile of them becomes bfloat16 in the cache of the core that
// needs it, and goes into the same product as weights that always were.
// Knows no instruction set. Invariant: the bits are those of `segue_linear` with these weights.
#include "linear_groups.h"

#include <algorithm>
#include <vector>

#include "linear_panel.h"
#include "ops.h"
#include "thread_pool.h"

namespace {

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
  const bf16 *x;
  const uint8_t *records;
  int m, k, record_size;
  Unpack unpack;
  GroupedProduct product;  // of few rows; null: there is none

  // Two blocks of outputs, which may be apart; the same twice where there is only one.
  void run(int left, int right, const PanelWriter &writer) const {
    if (has_many_rows(m)) return unpacked_panel(left, right, writer);
    alignas(64) float sums[MAX_TILE_ROWS * 2 * LANES];
    const int blocks = right == left ? 1 : 2;
    const int stride = product ? 2 * LANES : blocks * LANES;
    if (product) product({x, record(left, 0), record(right, 0), m, k / GROUP, sums});
    else unpacked_tile(left, right, blocks, sums);
    for (int row = 0; row < m; row++)
      writer.write(row, sums + row * stride, sums + row * stride + LANES);
  }

 private:
  const uint8_t *record(int block, int group) const {
    return records + ((int64_t)block * (k / GROUP) + group) * record_size;
  }

  void unpacked_panel(int left, int right, const PanelWriter &writer) const {
    const int64_t size = (int64_t)k * LANES;
    bf16 *weights = scratch(2 * size);
    unpack(record(left, 0), k / GROUP, weights);
    if (right != left) unpack(record(right, 0), k / GROUP, weights + size);
    multiply_panel({x, weights, right != left ? weights + size : weights, m, k}, writer);
  }

  void unpacked_tile(int left, int right, int blocks, float *sums) const {
    const int chunk = std::min(k, CHUNK);
    bf16 *weights = scratch((int64_t)blocks * chunk * LANES);
    for (int from = 0; from < k; from += chunk) {
      const int count = std::min(chunk, k - from);
      for (int i = 0; i < blocks; i++)
        unpack(record(i ? right : left, from / GROUP), count / GROUP,
               weights + (int64_t)i * count * LANES);
      multiply_tile({x + from, weights, m, blocks, count, sums, k, /*continues=*/from > 0});
    }
  }
};

GroupedLinear grouped_linear(int kind, const bf16 *x, const uint8_t *records, int m, int k) {
  const auto group_kind = (GroupKind)kind;
  const bool is_portable = multiply_tile == multiply_portably;
  return {x, records, m, k, record_bytes(group_kind),
          is_portable ? portable_unpack(group_kind) : avx512_unpack(group_kind),
          amx_grouped_product(group_kind)};
}

}  // namespace

extern "C" {

// As `segue_linear`, with the weights in groups; kind: of GroupKind.
void segue_linear_groups(int kind, const bf16 *x, const uint8_t *records, const bf16 *bias,
                         bf16 *out, int m, int n, int k) {
  const GroupedLinear linear = grouped_linear(kind, x, records, m, k);
  const int num_blocks = num_blocks_of(n);
  run_parts((num_blocks + 1) / 2, [&](int part) {
    const int left = 2 * part, right = std::min(left + 1, num_blocks - 1);
    linear.run(left, right, side_by_side(out, bias, left * LANES, n));
  });
}

bool segue_gated_linear_groups(int kind, const bf16 *x, const uint8_t *records, const bf16 *bias,
                               bf16 *out, int m, int n, int k) {
  if (!has_many_rows(m)) return false;
  const GroupedLinear linear = grouped_linear(kind, x, records, m, k);
  const int num_blocks = n / LANES;
  run_parts(num_blocks, [&](int part) {
    linear.run(part, part + num_blocks, gated(out, bias, part * LANES, n));
  });
  return true;
}
}
