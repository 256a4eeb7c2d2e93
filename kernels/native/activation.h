// The gate of a feed-forward layer, for the op and for a product that ends in it.
// Knows one vector. Invariant: it rounds where the two ops of reference.py do.
#pragma once

#include "vectors.h"

// silu(gate) * up, rounded to T where the ops of reference.py round; the result is not yet.
template <class T> static inline f32x16 silu_and_mul(f32x16 gate, f32x16 up, const T *type) {
  return rounded(gate / (exponential(-gate) + 1.0f), type) * up;
}
