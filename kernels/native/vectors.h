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

static inline float value_of(float x) { return x; }
static inline float value_of(bf16 x) { return bits_as<float>((uint32_t)x << 16); }

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
  return mask ? yes : no;  // lane by lane: one instruction, where masked bits were three
}

static inline f32x16 maximum(f32x16 a, f32x16 b) { return a > b ? a : b; }

#if defined(__clang__) || __GNUC__ >= 12
#define SHUFFLE(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define SHUFFLE(a, b, ...) __builtin_shuffle(a, b, (i32x16){__VA_ARGS__})
#endif

// Steps of `sums`: of each of the 2, 4, 8 or 16 parts that lie side by side in a and b, the upper
// half is added to the lower.
static inline f32x16 halves(f32x16 a, f32x16 b) {
  return SHUFFLE(a, b, 0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23) +
         SHUFFLE(a, b, 8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31);
}

static inline f32x16 quarters(f32x16 a, f32x16 b) {
  return SHUFFLE(a, b, 0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27) +
         SHUFFLE(a, b, 4, 5, 6, 7, 12, 13, 14, 15, 20, 21, 22, 23, 28, 29, 30, 31);
}

static inline f32x16 eighths(f32x16 a, f32x16 b) {
  return SHUFFLE(a, b, 0, 1, 4, 5, 8, 9, 12, 13, 16, 17, 20, 21, 24, 25, 28, 29) +
         SHUFFLE(a, b, 2, 3, 6, 7, 10, 11, 14, 15, 18, 19, 22, 23, 26, 27, 30, 31);
}

static inline f32x16 sixteenths(f32x16 a, f32x16 b) {
  return SHUFFLE(a, b, 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30) +
         SHUFFLE(a, b, 1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31);
}

// sum(v[i]) in lane i, in the same order of summation: a sixteenth of its additions each.
static inline f32x16 sums(const f32x16 (&v)[LANES]) {
  f32x16 of_two[8], of_four[4];
  for (int i = 0; i < 8; i++) of_two[i] = halves(v[2 * i], v[2 * i + 1]);
  for (int i = 0; i < 4; i++) of_four[i] = quarters(of_two[2 * i], of_two[2 * i + 1]);
  return sixteenths(eighths(of_four[0], of_four[1]), eighths(of_four[2], of_four[3]));
}

// The upper half of the first 16, 8, 4 or 2 lanes, in the place of the lower.
static inline f32x16 upper(f32x16 v, int width) {
  if (width == 8) return SHUFFLE(v, v, 8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3, 4, 5, 6, 7);
  if (width == 4) return SHUFFLE(v, v, 4, 5, 6, 7, 0, 1, 2, 3, 8, 9, 10, 11, 12, 13, 14, 15);
  if (width == 2) return SHUFFLE(v, v, 2, 3, 0, 1, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  return SHUFFLE(v, v, 1, 0, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
}

static inline float sum(f32x16 v) {
  for (int width = LANES / 2; width > 0; width /= 2) v += upper(v, width);
  return v[0];
}

static inline float largest(f32x16 v) {
  for (int width = LANES / 2; width > 0; width /= 2) v = maximum(v, upper(v, width));
  return v[0];
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
