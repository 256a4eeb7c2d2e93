// One group of sixteen outputs back to bfloat16 with AVX-512, for whoever wants it in a loop of its
// own: a vector holds eight outputs by an even and an odd input, so that two of them, rounded, are a
// row of pairs as it has to lie.
#pragma once

#include "groups.h"

#if defined(__AVX512BF16__)
// GCC 12 takes the undefined lanes of its own header for a fault.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#include <immintrin.h>

// The sixteen values of a record for its outputs 0 to 7 and 8 to 15, each twice.
struct Doubled {
  __m512 left, right;

  explicit Doubled(const uint8_t *at) {
    const __m512 values = _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)at));
    const __m512i lanes = _mm512_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7);
    left = _mm512_permutexvar_ps(lanes, values);
    right = _mm512_permutexvar_ps(_mm512_add_epi32(lanes, _mm512_set1_epi32(8)), values);
  }
};

static inline void store_pairs(bf16 *out, __m512 left, __m512 right) {
  _mm512_storeu_si512(out, (__m512i)_mm512_cvtne2ps_pbh(right, left));
}

static inline __m512 load_codes(const uint8_t *at) {
  return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)at)));
}

template <GroupKind KIND> inline void unpack_group(const uint8_t *record, bf16 *out);

template <> inline void unpack_group<GroupKind::INT8>(const uint8_t *record, bf16 *out) {
  const Doubled scale(record);
  const uint8_t *codes = record + 2 * LANES;
  for (int pair = 0; pair < GROUP / 2; pair++, codes += 2 * LANES, out += 2 * LANES)
    store_pairs(out, _mm512_mul_ps(load_codes(codes), scale.left),
                _mm512_mul_ps(load_codes(codes + LANES), scale.right));
}

template <> inline void unpack_group<GroupKind::Q4_1>(const uint8_t *record, bf16 *out) {
  // A permutation looks at the lowest 4 bits of a lane alone: it is mask and conversion in one.
  const __m512 values = _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  const Doubled scale(record), minimum(record + 2 * LANES);
  const uint8_t *words = record + 4 * LANES;
  for (int half = 0; half < 2; half++, words += 128) {
    __m512i left = _mm512_loadu_si512(words), right = _mm512_loadu_si512(words + 64);
    for (int pair = 0; pair < 8; pair++, out += 2 * LANES) {
      store_pairs(
          out, _mm512_fmadd_ps(_mm512_permutexvar_ps(left, values), scale.left, minimum.left),
          _mm512_fmadd_ps(_mm512_permutexvar_ps(right, values), scale.right, minimum.right));
      left = _mm512_srli_epi32(left, 4);
      right = _mm512_srli_epi32(right, 4);
    }
  }
}

// Of the record that is `bytes` behind.
template <GroupKind KIND> inline void prefetch_record(const uint8_t *record, int bytes) {
  for (int at = 0; at < record_bytes(KIND); at += 64)
    _mm_prefetch((const char *)record + bytes + at, _MM_HINT_T0);
}

#endif
