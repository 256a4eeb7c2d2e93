// Attention's entry. Knows no head: attention.h. Invariant: nothing is written for a head that it
// does not take.
#include "attention.h"

extern template bool attend_by_head_dim<bf16>(const AttentionBatch &batch);
extern template bool attend_by_head_dim<float>(const AttentionBatch &batch);

extern "C" {

bool segue_paged_attention(bool is_bf16, const void *query, const void *key_cache,
                           const void *value_cache, void *output, const int32_t *cu_seqlens_q,
                           const int32_t *seq_lens, const int32_t *block_tables,
                           const int32_t *sizes) {
  const AttentionBatch batch = {query,    key_cache,    value_cache, output,   cu_seqlens_q,
                                seq_lens, block_tables, sizes[0],    sizes[1], sizes[2],
                                sizes[3], sizes[4],     sizes[5],    sizes[6]};
  if (batch.head_dim % LANES != 0 || batch.group_size() > MAX_GROUP_SIZE) return false;
  return is_bf16 ? attend_by_head_dim<bf16>(batch) : attend_by_head_dim<float>(batch);
}
}
