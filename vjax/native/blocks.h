// GGUF's block types: a kind unpacks 32 weights at a time to small integers, from which both products are made.
#pragma once

#include <cmath>
#include <cstdint>

#include "grids.h"
#include "vectors.h"

namespace vjax {

constexpr int kUnit = 32;  // weights unpacked at a time

// Integers q of 32 weights, which are (q - zero) * scale - least, the second half with the second scale and minimum
// where a kind has two. Products of a scale and an integer are exact in float32 for every kind.
struct Unit {
  Bytes q;
  float scale[2], least[2];
};

// What most kinds are; others hide a constant with their own. `wide`: q is signed and takes all eight bits.
struct Plain {
  static constexpr int zero = 0, halves = 1;
  static constexpr bool wide = false, has_least = false;
};

// All float16 numbers as float32. Scales are looked up: conversion would take the ports that the arithmetic needs.
struct Halves {
  float values[1 << 16];
  Halves() {
    for (uint32_t bits = 0; bits < 1 << 16; ++bits) {
      const uint32_t sign = (bits & 0x8000) << 16, exponent = (bits >> 10) & 31, fraction = bits & 0x3ff;
      const uint32_t wide = sign | ((exponent == 31 ? 255 : exponent + 112) << 23) | (fraction << 13);
      const float small = static_cast<float>(fraction) * (sign ? -0x1p-24f : 0x1p-24f);  // zero and subnormal numbers
      values[bits] = exponent ? load<float>(&wide) : small;
    }
  }
};

inline const Halves halves;

inline float half(const uint8_t* p) { return halves.values[load<uint16_t>(p)]; }

// 16 bytes of nibbles: the low ones are weights 0 to 15, the high ones 16 to 31.
inline Bytes nibbles(const uint8_t* p) {
  const HalfBytes q = load<HalfBytes>(p);
  return join(q & 15, q >> 4);
}

// A fifth bit for each weight, in its place.
inline Bytes fifth(const uint8_t* p) {
#if defined(__AVX2__)
  const __m256i spread = _mm256_set_epi64x(0x0303030303030303, 0x0202020202020202, 0x0101010101010101, 0);
  const __m256i bit = _mm256_set1_epi64x(0x8040201008040201);
  const __m256i bytes = _mm256_shuffle_epi8(_mm256_set1_epi32(load<int32_t>(p)), spread);
  return (Bytes)_mm256_cmpeq_epi8(_mm256_and_si256(bytes, bit), bit) & 16;
#else
  Bytes v;
  for (int i = 0; i < kUnit; ++i) v[i] = (p[i / 8] >> (i % 8) & 1) << 4;
  return v;
#endif
}

// `table[q]` for q < 16.
inline Bytes look_up(const int8_t* table, Bytes q) {
#if defined(__AVX2__)
  return (Bytes)_mm256_shuffle_epi8(_mm256_broadcastsi128_si256(load<__m128i>(table)), (__m256i)q);
#else
  Bytes v;
  for (int i = 0; i < kUnit; ++i) v[i] = (uint8_t)table[q[i]];
  return v;
#endif
}

struct Q4_0 : Plain {
  static constexpr int width = 32, bytes = 18, zero = 8;
  static Unit unpack(const uint8_t* b, int) { return {nibbles(b + 2), {half(b)}, {}}; }
};

struct Q4_1 : Plain {
  static constexpr int width = 32, bytes = 20;
  static constexpr bool has_least = true;
  static Unit unpack(const uint8_t* b, int) { return {nibbles(b + 4), {half(b)}, {-half(b + 2)}}; }
};

struct Q5_0 : Plain {
  static constexpr int width = 32, bytes = 22, zero = 16;
  static Unit unpack(const uint8_t* b, int) { return {nibbles(b + 6) | fifth(b + 2), {half(b)}, {}}; }
};

struct Q5_1 : Plain {
  static constexpr int width = 32, bytes = 24;
  static constexpr bool has_least = true;
  static Unit unpack(const uint8_t* b, int) { return {nibbles(b + 8) | fifth(b + 4), {half(b)}, {-half(b + 2)}}; }
};

struct Q8_0 : Plain {
  static constexpr int width = 32, bytes = 34;
  static constexpr bool wide = true;
  static Unit unpack(const uint8_t* b, int) { return {load<Bytes>(b + 2), {half(b)}, {}}; }
};

struct Q2_K : Plain {
  static constexpr int width = 256, bytes = 84, halves = 2;
  static constexpr bool has_least = true;
  static Unit unpack(const uint8_t* b, int part) {
    const uint8_t* s = b + 2 * part;
    const float d = half(b + 80), least = half(b + 82);
    return {load<Bytes>(b + 16 + part / 4 * 32) >> (part % 4 * 2) & 3,
            {d * (s[0] & 15), d * (s[1] & 15)},
            {least * (s[0] >> 4), least * (s[1] >> 4)}};
  }
};

struct Q3_K : Plain {
  static constexpr int width = 256, bytes = 110, zero = 4, halves = 2;
  static Unit unpack(const uint8_t* b, int part) {
    const Bytes low = load<Bytes>(b + 32 + part / 4 * 32) >> (part % 4 * 2) & 3;
    const float d = half(b + 108);
    return {low | (load<Bytes>(b) >> part & 1) << 2, {d * scale(b + 96, 2 * part), d * scale(b + 96, 2 * part + 1)}, {}};
  }
  static int scale(const uint8_t* s, int i) {
    return (s[i % 8] >> (i / 8 * 4) & 15 | (s[8 + i % 4] >> (i / 4 * 2) & 3) << 4) - 32;
  }
};

// Scale and minimum of unit `part`: six bits each, packed in twelve bytes.
inline void scale_min(const uint8_t* s, int part, int* scale, int* min) {
  if (part < 4) {
    *scale = s[part] & 63;
    *min = s[part + 4] & 63;
  } else {
    *scale = (s[part + 4] & 15) | (s[part - 4] >> 6 << 4);
    *min = (s[part + 4] >> 4) | (s[part] >> 6 << 4);
  }
}

struct Q4_K : Plain {
  static constexpr int width = 256, bytes = 144;
  static constexpr bool has_least = true;
  static Unit unpack(const uint8_t* b, int part) {
    int scale, min;
    scale_min(b + 4, part, &scale, &min);
    return {load<Bytes>(b + 16 + part / 2 * 32) >> (part % 2 * 4) & 15, {half(b) * scale}, {half(b + 2) * min}};
  }
};

struct Q5_K : Plain {
  static constexpr int width = 256, bytes = 176;
  static constexpr bool has_least = true;
  static Unit unpack(const uint8_t* b, int part) {
    int scale, min;
    scale_min(b + 4, part, &scale, &min);
    const Bytes low = load<Bytes>(b + 48 + part / 2 * 32) >> (part % 2 * 4) & 15;
    return {low | (load<Bytes>(b + 16) >> part & 1) << 4, {half(b) * scale}, {half(b + 2) * min}};
  }
};

struct Q6_K : Plain {
  static constexpr int width = 256, bytes = 210, zero = 32, halves = 2;
  static Unit unpack(const uint8_t* b, int part) {
    const int n = part / 4, r = part % 4;
    const Bytes low = load<Bytes>(b + 64 * n + 32 * (r % 2)) >> (r / 2 * 4) & 15;
    const Bytes high = load<Bytes>(b + 128 + 32 * n) >> (2 * r) & 3;
    const float d = half(b + 208);
    const int8_t* scales = reinterpret_cast<const int8_t*>(b) + 192 + 2 * part;
    return {low | high << 4, {d * scales[0], d * scales[1]}, {}};
  }
};

alignas(16) constexpr int8_t kNonlinear[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};

struct IQ4_NL : Plain {
  static constexpr int width = 32, bytes = 18;
  static constexpr bool wide = true;
  static Unit unpack(const uint8_t* b, int) { return {look_up(kNonlinear, nibbles(b + 2)), {half(b)}, {}}; }
};

struct IQ4_XS : Plain {
  static constexpr int width = 256, bytes = 136;
  static constexpr bool wide = true;
  static Unit unpack(const uint8_t* b, int part) {
    const int low = b[4 + part / 2] >> (part % 2 * 4) & 15, high = load<uint16_t>(b + 2) >> (2 * part) & 3;
    return {look_up(kNonlinear, nibbles(b + 8 + 16 * part)), {half(b) * ((low | high << 4) - 32)}, {}};
  }
};

// Twice the numbers of e2m1 (OCP Microscaling Formats), plus 12.
alignas(16) constexpr int8_t kFloat4[16] = {12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0};

struct MXFP4 : Plain {
  static constexpr int width = 32, bytes = 17, zero = 12;
  static Unit unpack(const uint8_t* b, int) { return {look_up(kFloat4, nibbles(b + 1)), {half_power(b[0])}, {}}; }
  static float half_power(uint8_t e) {  // 2 ^ (e - 128), as the numbers are doubled
    const uint32_t bits = e < 2 ? 0x00200000u << e : (e - 1u) << 23;
    return load<float>(&bits);
  }
};

// Half of each number of e4m3 without sign; 0x7f, and with a sign what lies below it, are as the `gguf` package has them.
struct Float8s {
  float values[256];
  Float8s() {
    for (int bits = 0; bits < 256; ++bits) {
      const int exponent = bits >> 3 & 15, fraction = bits & 7;
      const float number = exponent ? std::ldexp(8.0f + fraction, exponent - 10) : fraction * 0x1p-9f;
      values[bits] = bits == 0x7f ? 0 : number * 0.5f;
    }
  }
};

inline const Float8s float8s;

struct NVFP4 : Plain {
  static constexpr int width = 64, bytes = 36, zero = 12, halves = 2;
  static Unit unpack(const uint8_t* b, int part) {
    // Eight bytes hold the low and then the high nibbles of 16 weights.
    const uint64_t first = load<uint64_t>(b + 4 + 16 * part), second = load<uint64_t>(b + 12 + 16 * part);
    typedef uint64_t Quads __attribute__((vector_size(32)));
    const Bytes q = (Bytes)(Quads{first, first >> 4, second, second >> 4}) & 15;
    return {look_up(kFloat4, q), {float8s.values[b[2 * part]], float8s.values[b[2 * part + 1]]}, {}};
  }
};

// `q` made negative where eight signs' bits say so, plus 64; a sign's index lacks its last bit, which makes all even.
inline Bytes with_signs(const uint8_t* q, uint32_t indices) {
  Bytes v;
  for (int i = 0; i < 4; ++i) {
    const uint32_t seven = indices >> (7 * i) & 127, signs = seven | (__builtin_popcount(seven) & 1) << 7;
    for (int j = 0; j < 8; ++j) v[8 * i + j] = 64 + (signs >> j & 1 ? -q[8 * i + j] : q[8 * i + j]);
  }
  return v;
}

struct IQ2_XXS : Plain {
  static constexpr int width = 256, bytes = 66, zero = 64;
  static Unit unpack(const uint8_t* b, int part) {
    const uint8_t* at = b + 2 + 8 * part;
    const uint32_t rest = load<uint32_t>(at + 4);
    uint8_t q[kUnit];
    for (int i = 0; i < 4; ++i)
      for (int j = 0; j < 8; ++j) q[8 * i + j] = kGrid2[kCodes2[at[i]] >> (2 * j) & 3];
    return {with_signs(q, rest), {half(b) * (0.5f + (rest >> 28)) * 0.25f}, {}};
  }
};

struct IQ3_XXS : Plain {
  static constexpr int width = 256, bytes = 98, zero = 64;
  static Unit unpack(const uint8_t* b, int part) {
    const uint32_t rest = load<uint32_t>(b + 66 + 4 * part);
    uint8_t q[kUnit];
    for (int i = 0; i < 8; ++i)
      for (int j = 0; j < 4; ++j) q[4 * i + j] = kGrid3[kCodes3[b[2 + 8 * part + i]] >> (3 * j) & 7];
    return {with_signs(q, rest), {half(b) * (0.5f + (rest >> 28)) * 0.5f}, {}};
  }
};

}  // namespace vjax
