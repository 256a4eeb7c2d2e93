// Up to 32 rows by two blocks of outputs, straight from their records.
#pragma once

#include "groups.h"
#include "linear.h"

struct GroupedTile {
  const bf16 *x;                // [num_rows][num_groups * 32]
  const uint8_t *left, *right;  // the first records of two blocks of outputs; one of them twice
  int num_rows, num_groups;
  float *out;  // [num_rows][2 * 16]
};

using GroupedProduct = void (*)(const GroupedTile &);

GroupedProduct amx_grouped_product(GroupKind kind);  // null: AMX is not what was chosen
