// What Python calls, and what one of these files calls of another. Sizes are what library.py checks.
#pragma once

#include "vectors.h"

extern "C" {

// x [m][k], bias [n] or null -> out [m][n].
void segue_linear(const bf16 *x, const bf16 *packed, const bf16 *bias, bf16 *out, int m, int n,
                  int k);
// weight [2 * n][k], gates before what they let through -> out [m][n], the bits of the product and
// `segue_silu_and_mul`. n is a multiple of LANES. False: not for so many rows on this machine.
bool segue_gated_linear(const bf16 *x, const bf16 *packed, const bf16 *bias, bf16 *out, int m,
                        int n, int k);
void segue_linear_float(const float *x, const float *packed, const float *bias, float *out, int m,
                        int n, int k);
void segue_linear_groups(int kind, const bf16 *x, const uint8_t *records, const bf16 *bias,
                         bf16 *out, int m, int n, int k);
bool segue_gated_linear_groups(int kind, const bf16 *x, const uint8_t *records, const bf16 *bias,
                               bf16 *out, int m, int n, int k);

// `added` may be the residual itself.
void segue_add_rms_norm(bool is_bf16, bool is_residual_bf16, const void *x, const void *residual,
                        const void *weight, void *added, void *out, int rows, int size, float eps);
void segue_silu_and_mul(bool is_bf16, const void *x, void *out, int rows, int size);
void segue_rotary_and_cache(bool is_bf16, const void *qkv, const void *cos, const void *sin,
                            void *query, void *key_cache, void *value_cache, const int64_t *slots,
                            int num_tokens, int num_heads, int num_kv_heads, int head_dim);

// As reference.paged_attention. sizes: rows, blocks a row, heads, key heads, head size, block size,
// window. False: not for a head of this size.
bool segue_paged_attention(bool is_bf16, const void *query, const void *key_cache,
                           const void *value_cache, void *output, const int32_t *cu_seqlens_q,
                           const int32_t *seq_lens, const int32_t *block_tables,
                           const int32_t *sizes);
}
