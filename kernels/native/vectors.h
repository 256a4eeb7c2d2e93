// Sixteen lanes of float in plain GNU vector extensions: AVX-512, AVX2, SSE or NEON by what the
// compiler is told. Knows nothing of tensors. Invariant: the order of every operation is written
// out here, so a value does not depend on where in a tensor it stands.
#pragma once

#include <cstdint>
#include <cstring>

constexpr int LANES = 16;

typedef float f32x16 __attribute__((vector_size(64)));
typedef int32_t i32x16 __attribute__((vector_size(64)));
typedef uint32_t u32x16 __attribute__((vector_size(64)));
typedef uint16_t u16x16 __attribute__((vector_size(32)));
typedef uint16_t bf16;  // the upper half of a float

template <class To, class From> static inline To bits_as(const From &from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  std::memcpy(&to, &from, sizeof(To));
  return to;
}

static inline f32x16 splat(float value) { return value - f32x16{}; }

static inline f32x16 load(const float *at) {
  f32x16 value;
  std::memcpy(&value, at, sizeof(value));
  return value;
}

static inline f32x16 load(const bf16 *at) {
  u16x16 half;
  std::memcpy(&half, at, sizeof(half));
  return bits_as<f32x16>(__builtin_convertvector(half, u32x16) << 16);
}

static inline void store(float *at, f32x16 value) { std::memcpy(at, &value, sizeof(value)); }

// Rounds to nearest, ties to even; NaN stays NaN.
static inline void store(bf16 *at, f32x16 value) {
  const u32x16 bits = bits_as<u32x16>(value);
  const u32x16 rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  const u32x16 is_nan = (u32x16)(value != value);
  const u16x16 half =
      __builtin_convertvector((is_nan & 0x7fc0) | (~is_nan & rounded), u16x16);
  std::memcpy(at, &half, sizeof(half));
}

// What a value is after a trip through memory in type T.
static inline f32x16 rounded(f32x16 value, const float *) { return value; }
static inline f32x16 rounded(f32x16 value, const bf16 *) {
  bf16 memory[LANES];
  store(memory, value);
  return load(memory);
}

static inline f32x16 select(i32x16 mask, f32x16 yes, f32x16 no) {
  return bits_as<f32x16>((mask & bits_as<i32x16>(yes)) | (~mask & bits_as<i32x16>(no)));
}

static inline f32x16 maximum(f32x16 a, f32x16 b) { return select(a > b, a, b); }

static inline float sum(f32x16 v) {
  float lanes[LANES];
  store(lanes, v);
  for (int width = LANES / 2; width > 0; width /= 2)
    for (int i = 0; i < width; i++) lanes[i] += lanes[i + width];
  return lanes[0];
}

static inline float largest(f32x16 v) {
  float lanes[LANES];
  store(lanes, v);
  for (int width = LANES / 2; width > 0; width /= 2)
    for (int i = 0; i < width; i++)
      lanes[i] = lanes[i] > lanes[i + width] ? lanes[i] : lanes[i + width];
  return lanes[0];
}

// e^x by 2^n * e^r, |r| <= ln(2)/2, a polynomial of degree 6 (Cephes expf); 0 below -87.
static inline f32x16 exponential(f32x16 x) {
  const f32x16 low = splat(-87.0f), high = splat(88.0f);
  const i32x16 is_zero = x < low;
  x = select(x > high, high, select(is_zero, low, x));
  const f32x16 shift = splat(12582912.0f);  // 1.5 * 2^23: adding it rounds to an integer
  const f32x16 n = (x * 1.44269504f + shift) - shift;
  const f32x16 r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
  f32x16 p = splat(1.9875691500e-4f);
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  const i32x16 exponent = (__builtin_convertvector(n, i32x16) + 127) << 23;
  return select(is_zero, splat(0.0f), p * bits_as<f32x16>(exponent));
}
