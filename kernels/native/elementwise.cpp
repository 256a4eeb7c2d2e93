// What a layer does between its products, one row at a time: norm, rotation, cache write, activation.
// Each rounds where the op of reference.py rounds. Sizes are multiples of LANES (who calls checks).
#include <algorithm>
#include <cmath>

#include "activation.h"
#include "ops.h"
#include "thread_pool.h"

namespace {

// Fewer rows than this are quicker on one thread than handed out.
constexpr int ROWS_OF_PART = 8;

template <class Rows> void run_ranges(int num_rows, const Rows &rows) {
  const int num_parts = (num_rows + ROWS_OF_PART - 1) / ROWS_OF_PART;
  run_parts(num_parts, [&](int part) {
    rows(part * ROWS_OF_PART, std::min(num_rows, (part + 1) * ROWS_OF_PART));
  });
}

template <class Row> void run_rows(int num_rows, const Row &row) {
  run_ranges(num_rows, [&](int first, int end) {
    for (int i = first; i < end; i++) row(i);
  });
}

// Memory that is written soon, all of it at once: a write that waits for memory holds up the next.
void expect_writes(const void *at, int64_t bytes) {
  for (int64_t i = 0; i < bytes; i += 64) __builtin_prefetch((const char *)at + i, 1);
}

// x null: of the residual alone; else of x + residual, which goes to `added` in R, the wider type.
template <class T, class R>
void norm_row(const T *x, const R *residual, const T *weight, R *added, T *out, int size,
              float eps) {
  f32x16 squares = splat(0.0f);
  for (int i = 0; i < size; i += LANES) {
    f32x16 value = load(residual + i);
    if (x) {
      value = rounded(load(x + i) + value, residual);
      store(added + i, value);
    }
    squares += value * value;
  }
  const float scale = 1.0f / std::sqrt(sum(squares) / size + eps);
  const R *from = x ? added : residual;
  for (int i = 0; i < size; i += LANES)
    store(out + i, rounded(load(from + i) * scale, weight) * load(weight + i));
}

template <class T> void activate_row(const T *x, T *out, int size) {
  for (int i = 0; i < size; i += LANES)
    store(out + i, silu_and_mul(load(x + i), load(x + size + i), x));
}

struct Heads {
  int num_heads, num_kv_heads, head_dim, rotary_dim;
};

// One head: its first rotary_dim elements turned, the others as they are.
template <class T>
void rotate_head(const T *x, const T *cos, const T *sin, T *out, const Heads &heads) {
  const int half = heads.rotary_dim / 2;
  for (int i = 0; i < half; i += LANES) {
    const f32x16 low = load(x + i), high = load(x + half + i), c = load(cos + i);
    const f32x16 s = load(sin + half + i);  // the second half of sin has its sign
    store(out + i, rounded(low * c, x) - rounded(high * s, x));
    store(out + half + i, rounded(high * c, x) + rounded(low * s, x));
  }
  std::copy(x + heads.rotary_dim, x + heads.head_dim, out + heads.rotary_dim);
}

// qkv [num_heads + 2 * num_kv_heads][head_dim] of one token.
template <class T>
void rotate_and_cache(const T *qkv, const T *cos, const T *sin, T *query, T *key, T *value,
                      const Heads &heads) {
  const int dim = heads.head_dim;
  for (int head = 0; head < heads.num_heads; head++)
    rotate_head(qkv + head * dim, cos, sin, query + head * dim, heads);
  const T *keys = qkv + heads.num_heads * dim, *values = keys + heads.num_kv_heads * dim;
  for (int head = 0; head < heads.num_kv_heads; head++)
    rotate_head(keys + head * dim, cos, sin, key + head * dim, heads);
  std::copy(values, values + heads.num_kv_heads * dim, value);
}

template <class T, class R>
void norm(const void *x, const void *residual, const void *weight, void *added, void *out,
          int rows, int size, float eps) {
  run_rows(rows, [=](int row) {
    const int64_t at = (int64_t)row * size;
    norm_row(x ? (const T *)x + at : nullptr, (const R *)residual + at, (const T *)weight,
             (R *)added + at, (T *)out + at, size, eps);
  });
}

template <class T> void activate(const void *x, void *out, int rows, int size) {
  run_rows(rows, [=](int row) {
    activate_row((const T *)x + (int64_t)row * 2 * size, (T *)out + (int64_t)row * size, size);
  });
}

template <class T>
void rotate(const void *qkv, const void *cos, const void *sin, void *query, void *key_cache,
            void *value_cache, const int64_t *slots, int num_tokens, const Heads &heads) {
  const int64_t query_size = (int64_t)heads.num_heads * heads.head_dim;
  const int64_t entry_size = (int64_t)heads.num_kv_heads * heads.head_dim;
  run_ranges(num_tokens, [=](int first, int end) {
    for (int token = first; token < end; token++) {
      expect_writes((T *)key_cache + slots[token] * entry_size, entry_size * sizeof(T));
      expect_writes((T *)value_cache + slots[token] * entry_size, entry_size * sizeof(T));
    }
    for (int token = first; token < end; token++)
      rotate_and_cache((const T *)qkv + token * (query_size + 2 * entry_size),
                       (const T *)cos + (int64_t)token * heads.rotary_dim,
                       (const T *)sin + (int64_t)token * heads.rotary_dim,
                       (T *)query + token * query_size, (T *)key_cache + slots[token] * entry_size,
                       (T *)value_cache + slots[token] * entry_size, heads);
  });
}

}  // namespace

extern "C" {

void segue_add_rms_norm(bool is_bf16, bool is_residual_bf16, const void *x, const void *residual,
                        const void *weight, void *added, void *out, int rows, int size,
                        float eps) {
  const auto run = !is_bf16          ? norm<float, float>
                   : is_residual_bf16 ? norm<bf16, bf16>
                                      : norm<bf16, float>;
  run(x, residual, weight, added, out, rows, size, eps);
}

void segue_silu_and_mul(bool is_bf16, const void *x, void *out, int rows, int size) {
  (is_bf16 ? activate<bf16> : activate<float>)(x, out, rows, size);
}

void segue_rotary_and_cache(bool is_bf16, const void *qkv, const void *cos, const void *sin,
                            void *query, void *key_cache, void *value_cache, const int64_t *slots,
                            int num_tokens, int num_heads, int num_kv_heads, int head_dim) {
  const Heads heads = {num_heads, num_kv_heads, head_dim, head_dim};
  (is_bf16 ? rotate<bf16> : rotate<float>)(qkv, cos, sin, query, key_cache, value_cache, slots,
                                           num_tokens, heads);
}
}
