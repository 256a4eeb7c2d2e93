// Groups of weights back to bfloat16, in plain vectors: each holds eight outputs by an even and an
// odd input, as they have to lie.
#include "groups.h"

namespace {

typedef int8_t i8x16 __attribute__((vector_size(16)));

// float16, exactly: its exponent is brought to float's by a product with a power of two.
f32x16 load_halves(const uint8_t *at) {
  u16x16 half;
  std::memcpy(&half, at, sizeof(half));
  const u32x16 bits = __builtin_convertvector(half, u32x16);
  const f32x16 magnitude = bits_as<f32x16>((bits & 0x7fff) << 13) * 0x1p112f;
  return bits_as<f32x16>(bits_as<u32x16>(magnitude) | (bits & 0x8000) << 16);
}

// The sixteen values of a record for its outputs 0 to 7 and 8 to 15, each twice.
struct Doubled {
  f32x16 sides[2];

  explicit Doubled(const uint8_t *at) {
    float values[LANES], doubled[2 * LANES];
    store(values, load_halves(at));
    for (int i = 0; i < 2 * LANES; i++) doubled[i] = values[i / 2];
    for (int side = 0; side < 2; side++) sides[side] = load(doubled + side * LANES);
  }
};

void unpack_int8(const uint8_t *record, int num_groups, bf16 *out) {
  for (int group = 0; group < num_groups; group++, record += record_bytes(GroupKind::INT8)) {
    const Doubled scale(record);
    const uint8_t *at = record + 2 * LANES;
    for (int i = 0; i < GROUP; i++, at += LANES, out += LANES) {
      i8x16 codes;
      std::memcpy(&codes, at, sizeof(codes));
      const i32x16 wide = __builtin_convertvector(codes, i32x16);
      store(out, __builtin_convertvector(wide, f32x16) * scale.sides[i % 2]);
    }
  }
}

void unpack_q4_1(const uint8_t *record, int num_groups, bf16 *out) {
  for (int group = 0; group < num_groups; group++, record += record_bytes(GroupKind::Q4_1)) {
    const Doubled scale(record), minimum(record + 2 * LANES);
    for (int part = 0; part < 4; part++) {  // half of the pairs, then side
      const int side = part % 2;
      u32x16 words;
      std::memcpy(&words, record + 4 * LANES + part * sizeof(words), sizeof(words));
      bf16 *to = out + part / 2 * GROUP / 2 * LANES + side * LANES;
      for (int pair = 0; pair < GROUP / 4; pair++, to += 2 * LANES) {
        const f32x16 codes = __builtin_convertvector((i32x16)(words & 15), f32x16);
        store(to, codes * scale.sides[side] + minimum.sides[side]);
        words >>= 4;
      }
    }
    out += GROUP * LANES;
  }
}

}  // namespace

Unpack portable_unpack(GroupKind kind) {
  return kind == GroupKind::INT8 ? unpack_int8 : unpack_q4_1;
}
