// Attention on float. Knows nothing else; see attention.h, whose invariants hold.
#include "attention.h"

template bool attend_by_head_dim<float>(const AttentionBatch &batch);
