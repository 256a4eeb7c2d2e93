// Paged attention of a mixed batch: each query on its own, over all keys that it sees; the keys of a
// head are unpacked once for some tokens that follow each other.
// Online softmax over chunks of keys (Milakov & Gimelshein 2018); paged as in vLLM (Kwon et al. 2023).
// Invariant: which chunks a token meets, and every order of summation in them, depends on its
// position alone, so its bits do not depend on the batch.
// Included by a file for each type of element, which a compiler takes long for: two at a time.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "ops.h"
#include "thread_pool.h"
#include "vectors.h"

constexpr int CHUNK_KEYS = 4 * LANES;
constexpr int MAX_GROUP_SIZE = 32;
constexpr int TILES_OF_THREAD = 4;
// Queries that share each key once it is unpacked: of one group's heads and several tokens.
constexpr int MAX_QUERIES = MAX_GROUP_SIZE, MAX_TILE_TOKENS = 8;

struct AttentionBatch {
  const void *query, *key_cache, *value_cache;
  void *output;
  const int32_t *cu_seqlens_q, *seq_lens, *block_tables;
  int num_rows, max_num_blocks, num_heads, num_kv_heads, head_dim, block_size;
  int window;  // how many keys a token sees, its own included; 0: all

  int group_size() const { return num_heads / num_kv_heads; }
  // Tokens with a window begin at different keys, so their chunks are no common ones.
  int tile_tokens() const {
    return window ? 1 : std::clamp(MAX_QUERIES / group_size(), 1, MAX_TILE_TOKENS);
  }
};

// False: not for a head of this size.
template <class T> bool attend_by_head_dim(const AttentionBatch &batch);

namespace {

// What one query has seen so far.
template <int D> struct Seen {
  f32x16 weighted[D];
  float total = 0, highest = -INFINITY;
};

struct TokenTile {
  int row, first_token, num_tokens;
};

// The entries that some tokens of a row read of one key head.
struct KeyRange {
  const int32_t *table;  // block ids
  int kv_head, first_key;
  int num_keys, most_keys;  // that the first and the last token see, from the row's first key on

  KeyRange(const AttentionBatch &batch, const TokenTile &tile, int kv_head)
      : table(batch.block_tables + (int64_t)tile.row * batch.max_num_blocks), kv_head(kv_head) {
    num_keys = batch.seq_lens[tile.row] - (batch.cu_seqlens_q[tile.row + 1] - tile.first_token) + 1;
    most_keys = num_keys + tile.num_tokens - 1;
    first_key = batch.window ? std::max(0, num_keys - batch.window) : 0;
  }
};

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
  struct Ahead {
    int64_t at[CHUNK_KEYS];
    int count = 0;

    // Of these keys: a few at a time, since a core waits where it asks for too much at once.
    void fetch(const void *cache, int first, int num_keys) const {
      for (int j = first; j < std::min(first + num_keys, count); j++)
        for (int i = 0; i < D * LANES; i += 64 / (int)sizeof(T))
          __builtin_prefetch((const T *)cache + at[j] + i, 0, 3);
    }
  };

  // Token by token, each with the heads of the group.
  int64_t place(int q) const {
    const int64_t token = first_token_ + q / group_size_;
    return (token * batch_.num_heads + keys_.kv_head * group_size_ + q % group_size_) * D * LANES;
  }

  int num_keys(int q) const { return keys_.num_keys + q / group_size_; }

  // Where in a cache the entries of a chunk's keys are; how many these are.
  int find(int64_t (&at)[CHUNK_KEYS], int first, const KeyRange &keys) const {
    const int count = std::min(CHUNK_KEYS, keys.most_keys - first);
    int block = first / batch_.block_size, slot = first % batch_.block_size;
    for (int j = 0; j < count; j++) {
      const int64_t index = (int64_t)keys.table[block] * batch_.block_size + slot;
      at[j] = (index * batch_.num_kv_heads + keys.kv_head) * D * LANES;
      if (++slot == batch_.block_size) slot = 0, block++;
    }
    return count;
  }

  // The keys of the next chunk, here or of what is read behind this.
  Ahead find_ahead(int first) const {
    Ahead ahead;
    if (first + CHUNK_KEYS < keys_.most_keys)
      ahead.count = find(ahead.at, first + CHUNK_KEYS, keys_);
    else if (next_)
      ahead.count = find(ahead.at, next_->first_key, *next_);
    return ahead;
  }

  // `add_chunk` for the Q queries of one token: they meet each key and value as it is read, so
  // that nothing is unpacked into memory, and what comes next is fetched in the mean time.
  template <int Q> void add_chunk_of_few(int first) {
    int64_t at[CHUNK_KEYS];
    float weights[Q][CHUNK_KEYS];
    const int count = find(at, first, keys_);
    const Ahead ahead = find_ahead(first);
    for (int j = 0; j < count; j += LANES) {
      ahead.fetch(batch_.key_cache, j, LANES);
      score_few<Q>(at + j, std::min(LANES, count - j), j, weights);
    }
    ahead.fetch(batch_.key_cache, (count + LANES - 1) / LANES * LANES, CHUNK_KEYS);
    f32x16 sum[Q][D];
    for (int q = 0; q < Q; q++) {
      weigh(seen_[q], weights[q], count);
      for (int d = 0; d < D; d++) sum[q][d] = seen_[q].weighted[d];
    }
    for (int j = 0; j < count; j++) {
      f32x16 value[D];
      unpack(batch_.value_cache, at[j], value);
      ahead.fetch(batch_.value_cache, j, 1);
      for (int q = 0; q < Q; q++)
        for (int d = 0; d < D; d++) sum[q][d] += value[d] * weights[q][j];
    }
    ahead.fetch(batch_.value_cache, count, CHUNK_KEYS);
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
    int64_t at[CHUNK_KEYS];
    float weights[MAX_QUERIES][CHUNK_KEYS];
    const int count = find(at, first, keys_);
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

  // Scores become weights relative to the highest score so far; what was seen is brought in line.
  static void weigh(Seen<D> &seen, float *scores, int count) {
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

  static constexpr int TOGETHER = D <= 8 ? 3 : 1;  // whose sums stay in registers

  const AttentionBatch &batch_;
  const KeyRange &keys_;
  const KeyRange *const next_;
  const int group_size_, num_queries_, first_token_;
  f32x16 query_[MAX_QUERIES][D];
  Seen<D> seen_[MAX_QUERIES];
};

std::vector<TokenTile> cut(const AttentionBatch &batch) {
  const int tile_tokens = batch.tile_tokens();
  std::vector<TokenTile> tiles;
  for (int row = 0; row < batch.num_rows; row++)
    for (int token = batch.cu_seqlens_q[row]; token < batch.cu_seqlens_q[row + 1];
         token += tile_tokens)
      tiles.push_back({row, token, std::min(tile_tokens, batch.cu_seqlens_q[row + 1] - token)});
  return tiles;
}

template <class T, int D> void attend(const AttentionBatch &batch) {
  const std::vector<TokenTile> tiles = cut(batch);
  // The heads' keys lie beside each other, so one core takes them all where there is enough to do.
  const int num_tiles = (int)tiles.size(), num_heads = batch.num_kv_heads;
  const int heads_of_part = num_tiles >= TILES_OF_THREAD * num_threads() ? num_heads : 1;
  const int parts_of_tile = num_heads / heads_of_part;
  const int num_parts = num_tiles * parts_of_tile;
  const auto keys_of = [&](int part, int i) {
    return KeyRange(batch, tiles[part / parts_of_tile], part % parts_of_tile * heads_of_part + i);
  };
  run_parts(num_parts, [&](int part) {
    // The other cores take the parts between this one and this core's next, if all are alike.
    const int next_part = std::min(part + num_threads(), num_parts - 1);
    for (int i = 0; i < heads_of_part; i++) {
      const bool is_last = i + 1 == heads_of_part;
      const KeyRange keys = keys_of(part, i);
      const KeyRange next = is_last ? keys_of(next_part, 0) : keys_of(part, i + 1);
      const TokenTile &tile = tiles[part / parts_of_tile];
      TileAttention<T, D>(batch, tile, keys, is_last && next_part <= part ? nullptr : &next).run();
    }
  });
}

}  // namespace

template <class T> bool attend_by_head_dim(const AttentionBatch &batch) {
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
