// Paged attention of a mixed batch: each (token, key head) on its own, over all keys that it sees.
// Online softmax over chunks of keys (Milakov & Gimelshein 2018); paged as in vLLM (Kwon et al. 2023).
// Invariant: which chunks a token meets, and every order of summation in them, depends on its
// position alone, so its bits do not depend on the batch.
#include <algorithm>
#include <cmath>

#include "ops.h"
#include "thread_pool.h"
#include "vectors.h"

namespace {

constexpr int CHUNK_KEYS = 4 * LANES;
constexpr int MAX_HEAD_VECTORS = 16, MAX_GROUP_SIZE = 32;

struct Batch {
  const void *query, *key_cache, *value_cache;
  void *output;
  const int32_t *cu_seqlens_q, *seq_lens, *block_tables;
  int num_rows, max_num_blocks, num_heads, num_kv_heads, head_dim, block_size;
  int window;  // how many keys a token sees, its own included; 0: all
};

// What the query heads of one key head have seen so far.
template <int D> struct Seen {
  f32x16 weighted[MAX_GROUP_SIZE][D];
  float total[MAX_GROUP_SIZE], highest[MAX_GROUP_SIZE];
};

template <class T, int D> class TokenAttention {
 public:
  TokenAttention(const Batch &batch, int row, int token, int kv_head)
      : batch_(batch), table_(batch.block_tables + (int64_t)row * batch.max_num_blocks),
        kv_head_(kv_head), group_size_(batch.num_heads / batch.num_kv_heads) {
    const int64_t first = ((int64_t)token * batch.num_heads + kv_head * group_size_) * D * LANES;
    query_ = (const T *)batch.query + first;
    output_ = (T *)batch.output + first;
    num_keys_ = batch.seq_lens[row] - (batch.cu_seqlens_q[row + 1] - token) + 1;
    first_key_ = batch.window ? std::max(0, num_keys_ - batch.window) : 0;
  }

  void run() {
    Seen<D> seen;
    f32x16 query[MAX_GROUP_SIZE][D];
    const float scale = 1.0f / std::sqrt((float)(D * LANES));
    for (int g = 0; g < group_size_; g++) {
      seen.total[g] = 0;
      seen.highest[g] = -INFINITY;
      for (int d = 0; d < D; d++) {
        seen.weighted[g][d] = splat(0.0f);
        query[g][d] = load(query_ + (g * D + d) * LANES) * scale;
      }
    }
    for (int first = first_key_; first < num_keys_; first += CHUNK_KEYS)
      add_chunk(seen, query, first, std::min(CHUNK_KEYS, num_keys_ - first));
    for (int g = 0; g < group_size_; g++)
      for (int d = 0; d < D; d++)
        store(output_ + (g * D + d) * LANES, seen.weighted[g][d] / seen.total[g]);
  }

 private:
  // Where in a cache the entries of these keys are.
  void find(int64_t (&at)[CHUNK_KEYS], int first, int count) const {
    int block = first / batch_.block_size, slot = first % batch_.block_size;
    for (int j = 0; j < count; j++) {
      const int64_t index = (int64_t)table_[block] * batch_.block_size + slot;
      at[j] = (index * batch_.num_kv_heads + kv_head_) * D * LANES;
      if (++slot == batch_.block_size) slot = 0, block++;
    }
  }

  void add_chunk(Seen<D> &seen, const f32x16 (&query)[MAX_GROUP_SIZE][D], int first, int count) {
    int64_t at[CHUNK_KEYS];
    float weights[MAX_GROUP_SIZE][CHUNK_KEYS];
    find(at, first, count);
    for (int j = 0; j < count; j += LANES)
      score(query, at + j, std::min(LANES, count - j), j, weights);
    f32x16 values[CHUNK_KEYS][D];
    for (int j = 0; j < count; j++)
      for (int d = 0; d < D; d++)
        values[j][d] = load((const T *)batch_.value_cache + at[j] + d * LANES);
    for (int g = 0; g < group_size_; g++) {
      weigh(seen, g, weights[g], count);
      f32x16 sum[D];
      for (int d = 0; d < D; d++) sum[d] = seen.weighted[g][d];
      for (int j = 0; j < count; j++)
        for (int d = 0; d < D; d++) sum[d] += values[j][d] * weights[g][j];
      for (int d = 0; d < D; d++) seen.weighted[g][d] = sum[d];
    }
  }

  // Of up to sixteen keys.
  void score(const f32x16 (&query)[MAX_GROUP_SIZE][D], const int64_t *at, int count, int first,
             float (&scores)[MAX_GROUP_SIZE][CHUNK_KEYS]) const {
    f32x16 products[MAX_GROUP_SIZE][LANES];
    for (int j = 0; j < LANES; j++) {
      const T *key = (const T *)batch_.key_cache + at[std::min(j, count - 1)];
      f32x16 part[D];
      for (int d = 0; d < D; d++) part[d] = load(key + d * LANES);
      for (int g = 0; g < group_size_; g++) {
        products[g][j] = query[g][0] * part[0];
        for (int d = 1; d < D; d++) products[g][j] += query[g][d] * part[d];
      }
    }
    for (int g = 0; g < group_size_; g++) store(scores[g] + first, sums(products[g]));
  }

  // Scores become weights relative to the highest score so far; what was seen is brought in line.
  static void weigh(Seen<D> &seen, int g, float *scores, int count) {
    const int num_vectors = (count + LANES - 1) / LANES;
    std::fill(scores + count, scores + num_vectors * LANES, -INFINITY);
    f32x16 highest = load(scores);
    for (int i = 1; i < num_vectors; i++) highest = maximum(highest, load(scores + i * LANES));
    const float before = seen.highest[g], now = std::max(before, largest(highest));
    f32x16 total = splat(0.0f);
    for (int i = 0; i < num_vectors; i++) {
      const f32x16 weight = exponential(load(scores + i * LANES) - now);
      store(scores + i * LANES, weight);
      total += weight;
    }
    const float kept = before == -INFINITY ? 0.0f : exponential(splat(before - now))[0];
    seen.total[g] = seen.total[g] * kept + sum(total);
    seen.highest[g] = now;
    for (int d = 0; d < D; d++) seen.weighted[g][d] *= kept;
  }

  const Batch &batch_;
  const int32_t *table_;
  const int kv_head_, group_size_;
  const T *query_;
  T *output_;
  int first_key_, num_keys_;
};

template <class T, int D> void attend(const Batch &batch) {
  const int num_tokens = batch.cu_seqlens_q[batch.num_rows];
  run_parts(num_tokens, [&](int token) {
    const int32_t *after = std::upper_bound(batch.cu_seqlens_q,
                                            batch.cu_seqlens_q + batch.num_rows + 1, token);
    const int row = (int)(after - batch.cu_seqlens_q) - 1;
    for (int head = 0; head < batch.num_kv_heads; head++)
      TokenAttention<T, D>(batch, row, token, head).run();
  });
}

template <class T> bool attend_by_head_dim(const Batch &batch) {
  switch (batch.head_dim / LANES) {
    case 1: attend<T, 1>(batch); return true;
    case 2: attend<T, 2>(batch); return true;
    case 3: attend<T, 3>(batch); return true;
    case 4: attend<T, 4>(batch); return true;
    case 5: attend<T, 5>(batch); return true;
    case 6: attend<T, 6>(batch); return true;
    case 8: attend<T, 8>(batch); return true;
    case 16: attend<T, 16>(batch); return true;
    default: return false;
  }
}

}  // namespace

extern "C" {

bool segue_paged_attention(bool is_bf16, const void *query, const void *key_cache,
                           const void *value_cache, void *output, const int32_t *cu_seqlens_q,
                           const int32_t *seq_lens, const int32_t *block_tables,
                           const int32_t *sizes) {
  const Batch batch = {query,    key_cache, value_cache,  output,   cu_seqlens_q,
                       seq_lens, block_tables, sizes[0], sizes[1], sizes[2],
                       sizes[3], sizes[4],  sizes[5],     sizes[6]};
  if (batch.head_dim % LANES != 0 || batch.num_heads / batch.num_kv_heads > MAX_GROUP_SIZE)
    return false;
  return is_bf16 ? attend_by_head_dim<bf16>(batch) : attend_by_head_dim<float>(batch);
}
}
