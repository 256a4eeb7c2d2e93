// Online softmax over chunks of keys (Milakov & Gimelshein 2018), for one query.
// Knows no key. Invariant: a chunk's weights and their sum depend on its scores and what was before.
#pragma once

#include <algorithm>
#include <cmath>

#include "vectors.h"

namespace {

// What one query has seen so far.
template <int D> struct Seen {
  f32x16 weighted[D];
  float total = 0, highest = -INFINITY;
};

// Scores become weights relative to the highest score so far; what was seen is brought in line.
template <int D> void weigh(Seen<D> &seen, float *scores, int count) {
  const int num_vectors = (count + LANES - 1) / LANES;
  std::fill(scores + count, scores + num_vectors * LANES, -INFINITY);
  f32x16 highest = load(scores);
  for (int i = 1; i < num_vectors; i++) highest = maximum(highest, load(scores + i * LANES));
  const float before = seen.highest, now = std::max(before, largest(highest));
  f32x16 total = splat(0.0f);
  for (int i = 0; i < num_vectors; i++) {
    const f32x16 weight = exponential(load(scores + i * LANES) - now);
    store(scores + i * LANES, weight);
    total += weight;
  }
  const float kept = before == -INFINITY ? 0.0f : exponential(splat(before - now))[0];
  seen.total = seen.total * kept + sum(total);
  seen.highest = now;
  for (int d = 0; d < D; d++) seen.weighted[d] *= kept;
}

}  // namespace
