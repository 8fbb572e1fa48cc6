// Products of block weights with activations in 8 bits, as sums of integers. 32 activations share a scale, the largest of
// them divided by 127, so that a sum over 32 products is exact; only sums over those are rounded.
#pragma once

#include <algorithm>
#include <cmath>

#include "blocks.h"

namespace vjax {

#if (defined(__AVX512VNNI__) && defined(__AVX512VL__)) || defined(__AVXVNNI__)
#define VJAX_VNNI 1
#endif

// 32 activations. Of each four: `sums` their sum, `constant` the sum of their products with what a kind's integers have
// too much, to be taken off.
struct alignas(32) Rounded {
  int8_t q[kUnit];
  Sums constant;
  FloatSums sums;
  float scale;
};

// What is taken off all integers of a kind; VNNI multiplies unsigned bytes, so that signed ones are raised by 128 first.
template <class Kind>
constexpr int offset() {
#ifdef VJAX_VNNI
  return Kind::wide ? 128 : Kind::zero;
#else
  return Kind::zero;
#endif
}

template <class Kind>
void round_units(const float* x, Rounded* units, int64_t count) {
  for (int64_t u = 0; u < count; ++u, x += kUnit) {
    float largest = 0, poison = 0;  // a number that is not finite makes the product so
    for (int i = 0; i < kUnit; ++i) {
      largest = std::max(largest, std::fabs(x[i]));
      poison += x[i] * 0.0f;
    }
    const float inverse = largest > 1e-30f ? 127.0f / largest : 0.0f;
    Rounded& unit = units[u];
    unit.scale = largest * (1.0f / 127.0f) + poison;
    for (int i = 0; i < kUnit; ++i) unit.q[i] = poison == 0 ? (int8_t)std::nearbyint(x[i] * inverse) : 0;
    for (int i = 0; i < 8; ++i) {
      const int sum = unit.q[4 * i] + unit.q[4 * i + 1] + unit.q[4 * i + 2] + unit.q[4 * i + 3];
      unit.constant[i] = -sum * offset<Kind>();
      unit.sums[i] = sum * unit.scale;
    }
  }
}

// Of each four, the sum of their products.
template <class Kind>
inline Sums products(Bytes q, const Rounded& x) {
  const Bytes y = load<Bytes>(x.q);
#if defined(__AVX512VNNI__) && defined(__AVX512VL__)
  return (Sums)_mm256_dpbusd_epi32((__m256i)x.constant, (__m256i)(Kind::wide ? q ^ 128 : q), (__m256i)y);
#elif defined(__AVXVNNI__)
  return (Sums)_mm256_dpbusd_avx_epi32((__m256i)x.constant, (__m256i)(Kind::wide ? q ^ 128 : q), (__m256i)y);
#elif defined(__AVX2__)
  // Two products of an unsigned and a signed byte must stay below 2^15, which no kind's exceed.
  const __m256i one = _mm256_set1_epi16(1);
  if constexpr (Kind::wide) {
    const __m256i size = _mm256_abs_epi8((__m256i)q), turned = _mm256_sign_epi8((__m256i)y, (__m256i)q);
    return (Sums)_mm256_madd_epi16(_mm256_maddubs_epi16(size, turned), one);
  }
  const Sums found = (Sums)_mm256_madd_epi16(_mm256_maddubs_epi16((__m256i)q, (__m256i)y), one);
  return Kind::zero ? found + x.constant : found;
#else
  Sums found = x.constant;
  for (int i = 0; i < kUnit; ++i) found[i / 4] += (Kind::wide ? (int8_t)q[i] : q[i]) * x.q[i];
  return found;
#endif
}

template <class Kind>
inline FloatSums spread(const float* value) {
  if constexpr (Kind::halves == 1) return FloatSums{} + value[0];
  const float a = value[0], b = value[1];
  return FloatSums{a, a, a, a, b, b, b, b};
}

// Bytes of weights that are asked for before they are needed: the processor's own prefetching loses its way in several
// rows at once. With it two cores read Q4_1 from memory 1.6 times as fast; half and twice as much were no better.
constexpr int kAhead = 4096;

// R rows of weights times M rows of x.
template <class Kind, int R, int M>
inline void rounded_tile(const Rounded* x, int64_t units, const uint8_t* w, int64_t row_bytes, float* y, int64_t out) {
  constexpr int parts = Kind::width / kUnit;
  FloatSums total[R][M] = {};
  for (int64_t at = 0; at < units; at += parts, w += Kind::bytes)
#pragma GCC unroll 8
    for (int part = 0; part < parts; ++part)
      for (int r = 0; r < R; ++r) {
        const uint8_t* block = w + r * row_bytes;
        __builtin_prefetch(block + Kind::bytes * part / parts + kAhead);
        const Unit unit = Kind::unpack(block, part);
        for (int m = 0; m < M; ++m) {
          const Rounded& of = x[m * units + at + part];
          const FloatSums sums = __builtin_convertvector(products<Kind>(unit.q, of), FloatSums);
          float scale[2];
          for (int i = 0; i < Kind::halves; ++i) scale[i] = unit.scale[i] * of.scale;
          total[r][m] += sums * spread<Kind>(scale);
          if constexpr (Kind::has_least) total[r][m] -= of.sums * spread<Kind>(unit.least);
        }
      }
  for (int r = 0; r < R; ++r)
    for (int m = 0; m < M; ++m) y[m * out + r] = sum8(total[r][m]);
}

// Rows of weights that a tile of M rows of x takes together, for independent chains of additions.
template <class Kind, int M>
void rounded_tiles(const Rounded* x, int64_t units, const uint8_t* w, int64_t row_bytes, float* y, int64_t out,
                   int64_t rows) {
  constexpr int R = M == 1 ? 4 : 1;
  int64_t r = 0;
  for (; r + R <= rows; r += R) rounded_tile<Kind, R, M>(x, units, w + r * row_bytes, row_bytes, y + r, out);
  for (; r < rows; ++r) rounded_tile<Kind, 1, M>(x, units, w + r * row_bytes, row_bytes, y + r, out);
}

template <class Kind>
void rounded_rows(const Rounded* x, int64_t tokens, int64_t in, const uint8_t* w, float* y, int64_t out, int64_t first,
                  int64_t last) {
  const int64_t row_bytes = in / Kind::width * Kind::bytes, units = in / kUnit;
  w += first * row_bytes;
  y += first;
  for (int64_t at = 0; at < std::min<int64_t>(kAhead, (last - first) * row_bytes); at += 64) __builtin_prefetch(w + at);
  int64_t m = 0;
  for (; m + 4 <= tokens; m += 4) rounded_tiles<Kind, 4>(x + m * units, units, w, row_bytes, y + m * out, out, last - first);
  for (; m < tokens; ++m) rounded_tiles<Kind, 1>(x + m * units, units, w, row_bytes, y + m * out, out, last - first);
}

}  // namespace vjax
