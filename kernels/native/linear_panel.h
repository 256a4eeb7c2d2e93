// Two blocks of outputs for many rows of x: what a product of many rows is cut into.
// A panel's weights stay in the caches of one core while all rows pass.
// Knows no instruction set. Invariant: where the right block lies behind the left one, the two are
// one tile of two blocks, and otherwise two of one; the bits are the same.
#pragma once

#include "activation.h"
#include "linear.h"

struct Panel {
  const bf16 *x;             // [num_rows][k]
  const bf16 *left, *right;  // packed, a block each; the same twice where there is only one
  int num_rows, k;
  // What this core probably multiplies next, and fetches from memory meanwhile; null: unknown.
  const bf16 *next_left = nullptr, *next_right = nullptr;
};

// Where the rows' sums go, rounded: side by side, or as one gated by the other.
struct PanelWriter {
  bf16 *out;       // of the first row and output
  int64_t stride;  // from row to row
  const bf16 *left_bias, *right_bias;  // or null
  int num_left, num_right;             // outputs; gated: LANES, and one vector is written
  bool is_gated;

  void write(int row, const float *left, const float *right) const {
    bf16 *to = out + row * stride;
    if (!is_gated) {
      write_row(to, left, left_bias, num_left);
      write_row(to + LANES, right, right_bias, num_right);
      return;
    }
    bf16 gate[LANES], up[LANES];
    write_row(gate, left, left_bias, LANES);
    write_row(up, right, right_bias, LANES);
    store(to, silu_and_mul(load(gate), load(up), to));
  }
};

// Of two blocks from `column` on, in rows of n outputs.
inline PanelWriter side_by_side(bf16 *out, const bf16 *bias, int column, int n) {
  const int num_rest = n - column - LANES;
  return {out + column, n, bias ? bias + column : nullptr,
          bias ? bias + column + LANES : nullptr, std::min(n - column, LANES),
          std::clamp(num_rest, 0, LANES), /*is_gated=*/false};
}

// Of the gates from `column` on, and what they let through, n outputs behind them.
inline PanelWriter gated(bf16 *out, const bf16 *bias, int column, int n) {
  return {out + column, n, bias ? bias + column : nullptr,
          bias ? bias + n + column : nullptr, LANES, LANES, /*is_gated=*/true};
}

void multiply_panel(const Panel &panel, const PanelWriter &writer);
// The rows from the first that fill tiles; how many these are. 0 where AMX is not what was chosen.
int multiply_panel_amx(const Panel &panel, const PanelWriter &writer);
