// Groups of weights back to bfloat16 with AVX-512.
#include "groups_avx512.h"

#if defined(__AVX512BF16__)

namespace {

constexpr int PREFETCH_BYTES = 2048;

template <GroupKind KIND> void unpack(const uint8_t *record, int num_groups, bf16 *out) {
  for (int group = 0; group < num_groups; group++, out += GROUP * LANES) {
    prefetch_record<KIND>(record, PREFETCH_BYTES);
    unpack_group<KIND>(record, out);
    record += record_bytes(KIND);
  }
}

}  // namespace

Unpack avx512_unpack(GroupKind kind) {
  return kind == GroupKind::INT8 ? unpack<GroupKind::INT8> : unpack<GroupKind::Q4_1>;
}

#else

Unpack avx512_unpack(GroupKind kind) { return portable_unpack(kind); }

#endif
