// Paged attention of a mixed batch: each query on its own, over all keys that it sees; the keys of a
// head are unpacked once for some tokens that follow each other.
// Online softmax over chunks of keys (Milakov & Gimelshein 2018); paged as in vLLM (Kwon et al. 2023).
// Invariant: which chunks a token meets, and every order of summation in them, depends on its
// position alone, so its bits do not depend on the batch.
// Included by a file for each type of element, which a compiler takes long for: two at a time.
#pragma once

#include <cmath>

#include "attention_batch.h"
#include "online_softmax.h"
#include "ops.h"

// False: not for a head of this size.
template <class T> bool attend_by_head_dim(const AttentionBatch &batch);

namespace {

// Tokens of one row that follow each other, and one key head.
template <class T, int D> class TileAttention {
 public:
  // next: what this core probably reads behind this, or null.
  TileAttention(const AttentionBatch &batch, const TokenTile &tile, const KeyRange &keys,
                const KeyRange *next)
      : batch_(batch), keys_(keys), next_(next), group_size_(batch.group_size()),
        num_queries_(tile.num_tokens * group_size_), first_token_(tile.first_token) {}

  void run() {
    const float scale = 1.0f / std::sqrt((float)(D * LANES));
    for (int q = 0; q < num_queries_; q++)
      for (int d = 0; d < D; d++) {
        seen_[q].weighted[d] = splat(0.0f);
        query_[q][d] = load((const T *)batch_.query + place(q) + d * LANES) * scale;
      }
    for (int first = keys_.first_key; first < keys_.most_keys; first += CHUNK_KEYS) {
      switch (num_queries_ == group_size_ ? group_size_ : 0) {
        case 1: add_chunk_of_few<1>(first); break;
        case 2: add_chunk_of_few<2>(first); break;
        case 3: add_chunk_of_few<3>(first); break;
        case 4: add_chunk_of_few<4>(first); break;
        default: add_chunk(first);
      }
    }
    for (int q = 0; q < num_queries_; q++)
      for (int d = 0; d < D; d++)
        store((T *)batch_.output + place(q) + d * LANES, seen_[q].weighted[d] / seen_[q].total);
  }

 private:
  // Token by token, each with the heads of the group.
  int64_t place(int q) const {
    const int64_t token = first_token_ + q / group_size_;
    return (token * batch_.num_heads + keys_.kv_head * group_size_ + q % group_size_) * D * LANES;
  }

  int num_keys(int q) const { return keys_.num_keys + q / group_size_; }

  // `add_chunk` for the Q queries of one token: they meet each key and value as it is read, so
  // that nothing is unpacked into memory, and what comes next is fetched in the mean time.
  template <int Q> void add_chunk_of_few(int first) {
    float weights[Q][CHUNK_KEYS];
    Places places;
    places.find(batch_, keys_, first);
    const auto &[at, count] = places;
    const Places ahead = places_ahead(batch_, keys_, first, next_);
    const T *keys = (const T *)batch_.key_cache, *values = (const T *)batch_.value_cache;
    for (int j = 0; j < count; j += LANES) {
      ahead.fetch<T, D>(keys, j, LANES);
      score_few<Q>(at + j, std::min(LANES, count - j), j, weights);
    }
    ahead.fetch<T, D>(keys, (count + LANES - 1) / LANES * LANES, CHUNK_KEYS);
    f32x16 sum[Q][D];
    for (int q = 0; q < Q; q++) {
      weigh(seen_[q], weights[q], count);
      for (int d = 0; d < D; d++) sum[q][d] = seen_[q].weighted[d];
    }
    for (int j = 0; j < count; j++) {
      f32x16 value[D];
      unpack(batch_.value_cache, at[j], value);
      ahead.fetch<T, D>(values, j, 1);
      for (int q = 0; q < Q; q++)
        for (int d = 0; d < D; d++) sum[q][d] += value[d] * weights[q][j];
    }
    ahead.fetch<T, D>(values, count, CHUNK_KEYS);
    for (int q = 0; q < Q; q++)
      for (int d = 0; d < D; d++) seen_[q].weighted[d] = sum[q][d];
  }

  template <int Q>
  void score_few(const int64_t *at, int count, int first, float (&scores)[Q][CHUNK_KEYS]) const {
    f32x16 products[Q][LANES];
    for (int j = 0; j < LANES; j++) {
      f32x16 key[D];
      unpack(batch_.key_cache, at[std::min(j, count - 1)], key);
      for (int q = 0; q < Q; q++) {
        f32x16 product = query_[q][0] * key[0];
        for (int d = 1; d < D; d++) product += query_[q][d] * key[d];
        products[q][j] = product;
      }
    }
    for (int q = 0; q < Q; q++) store(scores[q] + first, sums(products[q]));
  }

  void add_chunk(int first) {
    float weights[MAX_QUERIES][CHUNK_KEYS];
    Places places;
    places.find(batch_, keys_, first);
    const auto &[at, count] = places;
    for (int j = 0; j < count; j += LANES) score(at + j, std::min(LANES, count - j), j, weights);
    f32x16 values[CHUNK_KEYS][D];
    for (int j = 0; j < count; j++) unpack(batch_.value_cache, at[j], values[j]);
    for (int q = 0; q < num_queries_; q += group_size_) {
      const int num_seen = std::min(count, num_keys(q) - first);
      if (num_seen > 0) add_token(q, num_seen, values, weights);
    }
  }

  // The queries of one token, which see the same keys.
  void add_token(int first_query, int num_seen, const f32x16 (&values)[CHUNK_KEYS][D],
                 float (&weights)[MAX_QUERIES][CHUNK_KEYS]) {
    const int end = first_query + group_size_;
    for (int q = first_query; q < end; q++) weigh(seen_[q], weights[q], num_seen);
    int q = first_query;
    for (; q + TOGETHER <= end; q += TOGETHER) add<TOGETHER>(q, num_seen, values, weights + q);
    for (; q < end; q++) add<1>(q, num_seen, values, weights + q);
  }

  // A sum waits for the one before it, so one query alone leaves half of a core idle.
  template <int Q>
  void add(int q, int num_seen, const f32x16 (&values)[CHUNK_KEYS][D],
           const float (*weights)[CHUNK_KEYS]) {
    f32x16 sum[Q][D];
    for (int i = 0; i < Q; i++)
      for (int d = 0; d < D; d++) sum[i][d] = seen_[q + i].weighted[d];
    for (int j = 0; j < num_seen; j++)
      for (int i = 0; i < Q; i++)
        for (int d = 0; d < D; d++) sum[i][d] += values[j][d] * weights[i][j];
    for (int i = 0; i < Q; i++)
      for (int d = 0; d < D; d++) seen_[q + i].weighted[d] = sum[i][d];
  }

  // Of up to sixteen keys.
  void score(const int64_t *at, int count, int first,
             float (&scores)[MAX_QUERIES][CHUNK_KEYS]) const {
    f32x16 keys[LANES][D];
    for (int j = 0; j < LANES; j++) unpack(batch_.key_cache, at[std::min(j, count - 1)], keys[j]);
    for (int q = 0; q < num_queries_; q++) {
      f32x16 products[LANES];
      for (int j = 0; j < LANES; j++) {
        products[j] = query_[q][0] * keys[j][0];
        for (int d = 1; d < D; d++) products[j] += query_[q][d] * keys[j][d];
      }
      store(scores[q] + first, sums(products));
    }
  }

  static void unpack(const void *cache, int64_t at, f32x16 (&entry)[D]) {
    for (int d = 0; d < D; d++) entry[d] = load((const T *)cache + at + d * LANES);
  }

  static constexpr int TOGETHER = D <= 8 ? 3 : 1;  // whose sums stay in registers

  const AttentionBatch &batch_;
  const KeyRange &keys_;
  const KeyRange *const next_;
  const int group_size_, num_queries_, first_token_;
  f32x16 query_[MAX_QUERIES][D];
  Seen<D> seen_[MAX_QUERIES];
};

}  // namespace

template <class T> bool attend_by_head_dim(const AttentionBatch &batch) {
  switch (batch.head_dim / LANES) {
    case 1: attend<TileAttention<T, 1>>(batch); return true;
    case 2: attend<TileAttention<T, 2>>(batch); return true;
    case 3: attend<TileAttention<T, 3>>(batch); return true;
    case 4: attend<TileAttention<T, 4>>(batch); return true;
    case 5: attend<TileAttention<T, 5>>(batch); return true;
    case 6: attend<TileAttention<T, 6>>(batch); return true;
    case 8: attend<TileAttention<T, 8>>(batch); return true;
    case 16: attend<TileAttention<T, 16>>(batch); return true;
    default: return false;
  }
}
