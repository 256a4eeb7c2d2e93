// Groups of weights back to bfloat16, in plain vectors.
#include "groups.h"

namespace {

// float16, exactly: its exponent is brought to float's by a product with a power of two.
f32x16 load_halves(const uint8_t *at) {
  u16x16 half;
  std::memcpy(&half, at, sizeof(half));
  const u32x16 bits = __builtin_convertvector(half, u32x16);
  const f32x16 magnitude = bits_as<f32x16>((bits & 0x7fff) << 13) * 0x1p112f;
  return bits_as<f32x16>(bits_as<u32x16>(magnitude) | (bits & 0x8000) << 16);
}

// Sixteen outputs' weights of an even and of an odd input, side by side.
void store_pair(bf16 *out, f32x16 even, f32x16 odd) {
  bf16 values[2][LANES];
  store(values[0], even);
  store(values[1], odd);
  for (int lane = 0; lane < LANES; lane++)
    for (int parity = 0; parity < 2; parity++) out[lane * 2 + parity] = values[parity][lane];
}

void unpack_int8(const uint8_t *record, int num_groups, bf16 *out) {
  for (int group = 0; group < num_groups; group++, record += record_bytes(GroupKind::INT8)) {
    const f32x16 scale = load_halves(record);
    const int8_t *codes = (const int8_t *)record + 2 * LANES;
    for (int pair = 0; pair < GROUP / 2; pair++, codes += 2 * LANES, out += 2 * LANES) {
      float values[2][LANES];
      for (int lane = 0; lane < LANES; lane++)
        for (int parity = 0; parity < 2; parity++)
          values[parity][lane] = codes[lane * 2 + parity];
      store_pair(out, load(values[0]) * scale, load(values[1]) * scale);
    }
  }
}

void unpack_q4_1(const uint8_t *record, int num_groups, bf16 *out) {
  for (int group = 0; group < num_groups; group++, record += record_bytes(GroupKind::Q4_1)) {
    const f32x16 scale = load_halves(record), minimum = load_halves(record + 2 * LANES);
    uint32_t words[2][LANES][2];
    std::memcpy(words, record + 4 * LANES, sizeof(words));
    for (int pair = 0; pair < GROUP / 2; pair++, out += 2 * LANES) {
      float values[2][LANES];
      for (int lane = 0; lane < LANES; lane++)
        for (int parity = 0; parity < 2; parity++)
          values[parity][lane] = words[pair / 8][lane][parity] >> (pair % 8 * 4) & 15;
      store_pair(out, load(values[0]) * scale + minimum, load(values[1]) * scale + minimum);
    }
  }
}

}  // namespace

Unpack portable_unpack(GroupKind kind) {
  return kind == GroupKind::INT8 ? unpack_int8 : unpack_q4_1;
}
