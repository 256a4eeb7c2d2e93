// The largest of each row of logits, and where it stands: what greedy sampling needs of a vocabulary.
// Knows no parameter of sampling. Invariant: the lowest index among equals; a row's NaN, where it has
// one, is its largest.
#include <cmath>

#include "thread_pool.h"
#include "vectors.h"

namespace {

struct Largest {
  int64_t index;
  float value;
};

inline bool any(i32x16 mask) {
  int32_t found = 0;
  for (int i = 0; i < LANES; i++) found |= mask[i];
  return found != 0;
}

// The first of which `matches` says so of its block and itself; there is one.
template <class T, class Matches> Largest first(const T *row, int size, const Matches &matches) {
  int at = 0;
  while (at + LANES <= size && !any(matches(load(row + at)))) at += LANES;
  while (!matches(splat(value_of(row[at])))[0]) at++;
  return {at, value_of(row[at])};
}

// Of all values that it was given; one waits for the one before it, so there are several.
struct Best {
  f32x16 value = splat(-INFINITY);
  i32x16 is_nan = {};

  void add(f32x16 values) {
    value = maximum(value, values);
    is_nan |= values != values;
  }
};

template <class T> Largest largest_of_row(const T *row, int size) {
  constexpr int STEP = 4 * LANES;
  Best best[4];
  int at = 0;
  for (; at + STEP <= size; at += STEP)
    for (int i = 0; i < 4; i++) best[i].add(load(row + at + i * LANES));
  for (; at < size; at++) best[0].add(splat(value_of(row[at])));
  for (int i = 1; i < 4; i++) {
    best[0].value = maximum(best[0].value, best[i].value);
    best[0].is_nan |= best[i].is_nan;
  }
  if (any(best[0].is_nan)) return first(row, size, [](f32x16 v) -> i32x16 { return v != v; });
  const f32x16 wanted = splat(largest(best[0].value));
  return first(row, size, [=](f32x16 v) -> i32x16 { return v == wanted; });
}

template <class T> void run(const T *rows, int64_t *indices, float *values, int m, int n) {
  run_parts(m, [=](int row) {
    const Largest found = largest_of_row(rows + (int64_t)row * n, n);
    indices[row] = found.index;
    values[row] = found.value;
  });
}

}  // namespace

// rows [m][n], n > 0 -> indices [m], values [m].
extern "C" void segue_argmax(bool is_bf16, const void *rows, int64_t *indices, float *values, int m,
                             int n) {
  if (is_bf16) run((const bf16 *)rows, indices, values, m, n);
  else run((const float *)rows, indices, values, m, n);
}
