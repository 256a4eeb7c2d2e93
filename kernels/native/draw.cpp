// Draws a token of each row of logits: weights, filters and the draw of reference.py, row by row.
// Knows no penalty and no plan. Invariant: a row's token depends on its own logits and columns alone;
// sums over the vocabulary go block by block in double, in the order of the vocabulary.
#include <algorithm>
#include <cmath>
#include <functional>
#include <vector>

#include "thread_pool.h"
#include "vectors.h"

namespace {

constexpr int SUM_BLOCK = 256;
// Of a nucleus; where more tokens than these make up top_p, all are sorted.
constexpr int NUCLEUS_CANDIDATES = 1024;

// reference.philox_uniform.
double uniform(uint64_t seed, uint32_t choice, uint32_t output_index) {
  uint32_t words[4] = {output_index, choice, 0, 0}, key[2] = {(uint32_t)seed, uint32_t(seed >> 32)};
  for (int round = 0; round < 10; round++) {
    const uint64_t a = (uint64_t)words[0] * 0xD2511F53, b = (uint64_t)words[2] * 0xCD9E8D57;
    const uint32_t next[4] = {uint32_t(b >> 32) ^ words[1] ^ key[0], (uint32_t)b,
                              uint32_t(a >> 32) ^ words[3] ^ key[1], (uint32_t)a};
    std::copy(next, next + 4, words);
    key[0] += 0x9E3779B9;
    key[1] += 0xBB67AE85;
  }
  return (words[0] + 0.5) / 4294967296.0;
}

// Whole blocks, zeros behind the vocabulary and for what is no number. The best token weighs 1.
template <class T> void weigh(const T *logits, int n, float temperature, std::vector<float> &out) {
  out.assign((n + SUM_BLOCK - 1) / SUM_BLOCK * SUM_BLOCK, -INFINITY);
  f32x16 best = splat(-INFINITY);
  int at = 0;
  for (; at + LANES <= n; at += LANES) {
    const f32x16 scaled = load(logits + at) / temperature;
    store(&out[at], scaled);
    best = maximum(best, scaled);
  }
  for (; at < n; at++) {
    out[at] = value_of(logits[at]) / temperature;
    best = maximum(best, splat(out[at]));
  }
  const f32x16 highest = splat(largest(best)), nothing = splat(0.0f);
  for (size_t i = 0; i < out.size(); i += LANES) {
    const f32x16 weight = exponential(load(&out[i]) - highest);
    store(&out[i], select(weight > nothing, weight, nothing));
  }
}

void drop_below(float threshold, std::vector<float> &weights) {
  const f32x16 least = splat(threshold), nothing = splat(0.0f);
  for (size_t i = 0; i < weights.size(); i += LANES) {
    const f32x16 some = load(&weights[i]);
    store(&weights[i], select(some >= least, some, nothing));
  }
}

double sum_of_block(const float *weights) {
  typedef double f64x16 __attribute__((vector_size(128)));
  f64x16 total = {};
  for (int i = 0; i < SUM_BLOCK; i += LANES)
    total += __builtin_convertvector(load(weights + i), f64x16);
  double sum = 0;
  for (int i = 0; i < LANES; i++) sum += total[i];
  return sum;
}

// The k-th largest, 1 <= k <= their number.
float top_k_threshold(const std::vector<float> &weights, int64_t k) {
  static thread_local std::vector<float> ordered;
  ordered = weights;
  std::nth_element(ordered.begin(), ordered.begin() + (k - 1), ordered.end(), std::greater<float>());
  return ordered[k - 1];
}

// The smallest weight of those that together make up top_p of all, the largest first.
float nucleus_threshold(const std::vector<float> &weights, double top_p) {
  static thread_local std::vector<float> ordered;
  ordered.clear();
  double wanted = 0;
  for (size_t block = 0; block < weights.size(); block += SUM_BLOCK)
    wanted += sum_of_block(&weights[block]);
  wanted *= top_p;
  for (float weight : weights)
    if (weight > 0) ordered.push_back(weight);
  if (ordered.empty()) return 0.0f;
  const size_t few = std::min<size_t>(NUCLEUS_CANDIDATES, ordered.size());
  for (size_t count : {few, ordered.size()}) {
    const auto middle = ordered.begin() + count;
    std::nth_element(ordered.begin(), middle, ordered.end(), std::greater<float>());
    std::sort(ordered.begin(), middle, std::greater<float>());
    double more_likely = 0;
    for (size_t i = 0; i < count; i++) {
      if (i > 0 && more_likely >= wanted) return ordered[i - 1];
      more_likely += ordered[i];
    }
    if (more_likely >= wanted) return ordered[count - 1];
  }
  return 0.0f;
}

// The first token whose cumulative weight exceeds the target's share; n > 0 of `weights` are tokens.
int64_t draw(const std::vector<float> &weights, double share, int n) {
  static thread_local std::vector<double> cumulative;
  cumulative.clear();
  double total = 0;
  for (size_t block = 0; block < weights.size(); block += SUM_BLOCK)
    cumulative.push_back(total += sum_of_block(&weights[block]));
  const double target = share * total;
  size_t block = 0;
  while (block + 1 < cumulative.size() && cumulative[block] <= target) block++;
  double reached = block ? cumulative[block - 1] : 0.0;
  // Where rounding puts the target behind the block's end, it is the block's last token.
  int64_t chosen = block * SUM_BLOCK;
  for (int i = 0; i < SUM_BLOCK; i++) {
    const float weight = weights[block * SUM_BLOCK + i];
    if (!(weight > 0)) continue;
    chosen = block * SUM_BLOCK + i;
    if ((reached += weight) > target) break;
  }
  return std::min<int64_t>(chosen, n - 1);
}

}  // namespace

// A value of each row that draws; arrays of m.
struct DrawColumns {
  const int64_t *rows, *seeds, *choices, *output_indices;
  const float *temperatures;
  const int64_t *top_ks;  // 0: no limit
  const double *top_ps;
  const float *min_ps;
};

template <class T> static int64_t draw_row(const T *logits, const DrawColumns &columns, int i, int n) {
  static thread_local std::vector<float> weights;
  weigh(logits + columns.rows[i] * n, n, columns.temperatures[i], weights);
  float threshold = columns.min_ps[i];
  const int64_t top_k = columns.top_ks[i];
  if (top_k > 0 && top_k < n) threshold = std::max(threshold, top_k_threshold(weights, top_k));
  if (threshold > 0) drop_below(threshold, weights);
  if (columns.top_ps[i] < 1) drop_below(nucleus_threshold(weights, columns.top_ps[i]), weights);
  const double share = uniform(columns.seeds[i], columns.choices[i], columns.output_indices[i]);
  return draw(weights, share, n);
}

// logits [any][n] -> token_ids [m].
extern "C" void segue_draw(bool is_bf16, const void *logits, const DrawColumns *columns,
                           int64_t *token_ids, int m, int n) {
  run_parts(m, [=](int i) {
    token_ids[i] = is_bf16 ? draw_row((const bf16 *)logits, *columns, i, n)
                           : draw_row((const float *)logits, *columns, i, n);
  });
}
