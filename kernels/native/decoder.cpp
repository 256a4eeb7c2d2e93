// All layers of a decoder in one call: the ops of this directory in the order in which a model would
// call them, with nothing between two of them. A step of few tokens is made of hundreds of ops of
// some microseconds each, so what lies between them counts.
// Knows no arithmetic of its own. Invariant: the bits are those of the same ops called one by one.
#include "groups.h"
#include "ops.h"

namespace {

// As decoder.py has them. A weight's kind: of GroupKind, or one of these.
constexpr int BFLOAT16 = 2, FLOAT = 3;

struct Linear {
  const void *weight, *bias;
  int32_t kind, num_outputs, num_inputs;
};

struct Layer {
  Linear qkv, out, gate_up, down;
  const void *post_attention_norm, *next_norm;
  int32_t window;
};

struct Model {
  const Layer *layers;
  int32_t num_layers, hidden_size, num_heads, num_kv_heads, head_dim;
  float eps;
  bool is_bf16;
};

struct Step {
  void *hidden;     // [num_tokens][hidden_size], normed; the result too
  float *residual;  // [num_tokens][hidden_size], what all layers before have added
  const void *cos, *sin;
  const int64_t *slots;
  const int32_t *cu_seqlens_q, *seq_lens, *block_tables;
  void *qkv, *query, *attended, *added, *gate_up, *activated;  // rows of what their names say
  int32_t num_tokens, num_rows, max_num_blocks, block_size;
};

void multiply(const Linear &linear, const void *x, void *out, int m) {
  const int n = linear.num_outputs, k = linear.num_inputs;
  if (linear.kind == FLOAT)
    segue_linear_float((const float *)x, (const float *)linear.weight, (const float *)linear.bias,
                       (float *)out, m, n, k);
  else if (linear.kind == BFLOAT16)
    segue_linear((const bf16 *)x, (const bf16 *)linear.weight, (const bf16 *)linear.bias,
                 (bf16 *)out, m, n, k);
  else
    segue_linear_groups(linear.kind, (const bf16 *)x, (const uint8_t *)linear.weight,
                        (const bf16 *)linear.bias, (bf16 *)out, m, n, k);
}

// gate_up: room for what is not activated yet, where the two are not one.
void multiply_gated(const Linear &linear, bool is_bf16, const void *x, void *gate_up, void *out,
                    int m) {
  const int n = linear.num_outputs / 2, k = linear.num_inputs;
  const bf16 *bias = (const bf16 *)linear.bias;
  if (linear.kind == BFLOAT16) {
    if (segue_gated_linear((const bf16 *)x, (const bf16 *)linear.weight, bias, (bf16 *)out, m, n,
                           k))
      return;
  } else if (linear.kind != FLOAT) {
    if (segue_gated_linear_groups(linear.kind, (const bf16 *)x, (const uint8_t *)linear.weight,
                                  bias, (bf16 *)out, m, n, k))
      return;
  }
  multiply(linear, x, gate_up, m);
  segue_silu_and_mul(is_bf16, gate_up, out, m, n);
}

}  // namespace

extern "C" {

// key_caches, value_caches: one of each layer.
void segue_decoder(const Model *model, const Step *step, void *const *key_caches,
                   void *const *value_caches) {
  const Layer *layers = model->layers;
  const int tokens = step->num_tokens, hidden_size = model->hidden_size;
  const bool is_bf16 = model->is_bf16;
  for (int i = 0; i < model->num_layers; i++) {
    const Layer &layer = layers[i];
    const int32_t sizes[] = {step->num_rows,      step->max_num_blocks, model->num_heads,
                             model->num_kv_heads, model->head_dim,      step->block_size,
                             layer.window};
    multiply(layer.qkv, step->hidden, step->qkv, tokens);
    segue_rotary_and_cache(is_bf16, step->qkv, step->cos, step->sin, step->query, key_caches[i],
                           value_caches[i], step->slots, tokens, model->num_heads,
                           model->num_kv_heads, model->head_dim);
    segue_paged_attention(is_bf16, step->query, key_caches[i], value_caches[i], step->attended,
                          step->cu_seqlens_q, step->seq_lens, step->block_tables, sizes);
    multiply(layer.out, step->attended, step->added, tokens);
    segue_add_rms_norm(is_bf16, false, step->added, step->residual, layer.post_attention_norm,
                       step->residual, step->hidden, tokens, hidden_size, model->eps);
    multiply_gated(layer.gate_up, is_bf16, step->hidden, step->gate_up, step->activated, tokens);
    multiply(layer.down, step->activated, step->added, tokens);
    segue_add_rms_norm(is_bf16, false, step->added, step->residual, layer.next_norm, step->residual,
                       step->hidden, tokens, hidden_size, model->eps);
  }
}
}
