// Attention on bfloat16. Knows nothing else; see attention.h, whose invariants hold.
#include "attention.h"

template bool attend_by_head_dim<bf16>(const AttentionBatch &batch);
