// A mixed batch cut into tiles of tokens, and where the keys that a tile reads lie.
// Knows no arithmetic. Invariant: which chunks of keys a token meets depends on its position alone.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

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

namespace {

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

// Where in a cache the entries of some keys are, in elements.
struct Places {
  int64_t at[CHUNK_KEYS];
  int count = 0;

  void find(const AttentionBatch &batch, const KeyRange &keys, int first) {
    count = std::min(CHUNK_KEYS, keys.most_keys - first);
    int block = first / batch.block_size, slot = first % batch.block_size;
    for (int j = 0; j < count; j++) {
      const int64_t index = (int64_t)keys.table[block] * batch.block_size + slot;
      at[j] = (index * batch.num_kv_heads + keys.kv_head) * batch.head_dim;
      if (++slot == batch.block_size) slot = 0, block++;
    }
  }

  // Of these keys: a few at a time, since a core waits where it asks for too much at once.
  template <class T, int D> void fetch(const T *cache, int first, int num_keys) const {
    for (int j = first; j < std::min(first + num_keys, count); j++)
      for (int i = 0; i < D * LANES; i += 64 / (int)sizeof(T))
        __builtin_prefetch(cache + at[j] + i, 0, 3);
  }
};

// The keys of the chunk behind this one, here or of what is read next, if that is known.
inline Places places_ahead(const AttentionBatch &batch, const KeyRange &keys, int first,
                           const KeyRange *next) {
  Places ahead;
  if (first + CHUNK_KEYS < keys.most_keys) ahead.find(batch, keys, first + CHUNK_KEYS);
  else if (next) ahead.find(batch, *next, next->first_key);
  return ahead;
}

std::vector<TokenTile> cut(const AttentionBatch &batch) {
  const int tile_tokens = batch.tile_tokens();
  std::vector<TokenTile> tiles;
  for (int row = 0; row < batch.num_rows; row++)
    for (int token = batch.cu_seqlens_q[row]; token < batch.cu_seqlens_q[row + 1];
         token += tile_tokens)
      tiles.push_back({row, token, std::min(tile_tokens, batch.cu_seqlens_q[row + 1] - token)});
  return tiles;
}

// Tile(batch, tokens, keys, what this core probably reads next, or null).run(), for all of it.
template <class Tile> void attend(const AttentionBatch &batch) {
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
      Tile(batch, tile, keys, is_last && next_part <= part ? nullptr : &next).run();
    }
  });
}

}  // namespace
