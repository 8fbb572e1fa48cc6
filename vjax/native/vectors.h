// Vectors of float32 in the compiler's own extension, as wide as the machine's registers.
#pragma once

#include <cstdint>
#include <cstring>

#if defined(__AVX2__)
#include <immintrin.h>
#endif

namespace vjax {

#if defined(__AVX512F__)
constexpr int kLanes = 16;
#else
constexpr int kLanes = 8;
#endif

typedef float Floats __attribute__((vector_size(4 * kLanes)));
typedef uint32_t Words __attribute__((vector_size(4 * kLanes)));
typedef int32_t Ints __attribute__((vector_size(4 * kLanes)));

// Of fixed width: 32 small integers, and the sums of each four of them.
typedef uint8_t Bytes __attribute__((vector_size(32)));
typedef uint8_t HalfBytes __attribute__((vector_size(16)));
typedef int32_t Sums __attribute__((vector_size(32)));
typedef float FloatSums __attribute__((vector_size(32)));

template <class T>
inline T load(const void* p) {
  T value;
  std::memcpy(&value, p, sizeof value);
  return value;
}

inline void store(float* p, Floats v) { std::memcpy(p, &v, sizeof v); }

template <class V, class T>
inline V iota(T first) {
  V v;
  for (int i = 0; i < kLanes; ++i) v[i] = first + i;
  return v;
}

inline Bytes join(HalfBytes low, HalfBytes high) {
#if defined(__AVX2__)
  return (Bytes)_mm256_set_m128i((__m128i)high, (__m128i)low);
#else
  Bytes v;
  std::memcpy(&v, &low, sizeof low);
  std::memcpy(reinterpret_cast<char*>(&v) + sizeof low, &high, sizeof high);
  return v;
#endif
}

inline float sum8(FloatSums v) { return ((v[0] + v[4]) + (v[2] + v[6])) + ((v[1] + v[5]) + (v[3] + v[7])); }

inline float sum(Floats v) {
#if defined(__AVX512F__)
  return _mm512_reduce_add_ps((__m512)v);
#else
  return sum8((FloatSums)v);
#endif
}

// e^x for x <= 0 within 2 ulp; 0 below the smallest normal number.
inline Floats exp_negative(Floats x) {
  const Floats low = Floats{} - 87.0f, clamped = x < low ? low : x;
  const Floats scaled = clamped * 1.44269504f - 0.5f;
  const Ints n = __builtin_convertvector(scaled, Ints);  // truncates: the nearest integer, as scaled < 0
  const Floats whole = __builtin_convertvector(n, Floats);
  const Floats r = (clamped - whole * 0.693359375f) + whole * 2.12194440e-4f;  // |r| <= ln(2) / 2
  Floats p = Floats{} + 1.0f / 5040;
  for (float c : {1.0f / 720, 1.0f / 120, 1.0f / 24, 1.0f / 6, 0.5f, 1.0f, 1.0f}) p = p * r + c;
  const Floats power = (Floats)((n + 127) << 23);
  return x < low ? Floats{} : p * power;
}

}  // namespace vjax
