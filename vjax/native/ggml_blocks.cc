// Products with GGUF block weights, called by XLA through its FFI: blocks are decoded in registers, activations stay
// float32. Compiled for the machine it runs on; other instruction sets take the plain C++ below.
//
//   vjax_ggml_matmul      x f32 [..., in], blocks u8 [1..., out, row_bytes] -> f32 [..., out]
//   vjax_ggml_dequantize  blocks u8 [out, row_bytes] -> f32 [out, in]
#include <string>
#include <string_view>

#include "parallel.h"
#include "vectors.h"
#include "xla/ffi/api/ffi.h"

namespace ffi = xla::ffi;
using namespace vjax;

namespace {

constexpr int kUnit = 32;                // weights decoded at a time
constexpr int kVectors = kUnit / kLanes;  // registers they fill
constexpr int kHalf = kVectors / 2;
constexpr int kMaxTile = 8;  // rows of x that share one decoded unit

// The next kLanes bytes, one a lane.
inline Words widen(const uint8_t* p) {
#if defined(__AVX512F__)
  return (Words)_mm512_cvtepu8_epi32(load<__m128i>(p));
#elif defined(__AVX2__)
  return (Words)_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i*)p));
#else
  Words v;
  for (int i = 0; i < kLanes; ++i) v[i] = p[i];
  return v;
#endif
}

inline Ints widen_signed(const uint8_t* p) {
#if defined(__AVX512F__)
  return (Ints)_mm512_cvtepi8_epi32(load<__m128i>(p));
#elif defined(__AVX2__)
  return (Ints)_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i*)p));
#else
  Ints v;
  for (int i = 0; i < kLanes; ++i) v[i] = (int8_t)p[i];
  return v;
#endif
}

// Small non-negative integers only: the signed conversion is the fast one.
inline Floats to_float(Words v) { return __builtin_convertvector((Ints)v, Floats); }

// All float16 numbers as float32. Two scales a block are converted: a load that also broadcasts keeps the conversion off
// the ports that the arithmetic needs, which on AVX-512 is worth a factor of 1.8.
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

const Halves halves;

inline float half(const uint8_t* p) { return halves.values[load<uint16_t>(p)]; }

// Sixteen values by the low four bits of each word.
struct Table {
#if defined(__AVX512F__)
  Floats values;
  Table(float scale, float zero, float offset) : values((iota<Floats>(0.0f) - zero) * scale + offset) {}
  Floats operator[](Words index) const { return (Floats)_mm512_permutexvar_ps((__m512i)index, (__m512)values); }
#else
  float scale, zero, offset;
  Table(float s, float z, float o) : scale(s), zero(z), offset(o) {}
  Floats operator[](Words index) const { return (to_float(index & 15) - zero) * scale + offset; }
#endif
};

// A kind decodes unit `part` of a block into `w`. Products of a scale and an integer are exact in float32 for every kind,
// so fused or not, the values are those of the format's definition.

// 16 bytes of nibbles: the low ones are weights 0 to 15, the high ones 16 to 31.
inline void nibbles(const uint8_t* q, const Table& table, Floats* w) {
  for (int i = 0; i < kHalf; ++i) {
    const Words packed = widen(q + i * kLanes);
    w[i] = table[packed];
    w[kHalf + i] = table[packed >> 4];
  }
}

// The same with a fifth bit of each weight.
inline void nibbles5(const uint8_t* q, uint32_t high, float scale, float zero, float offset, Floats* w) {
  for (int i = 0; i < kHalf; ++i) {
    const Words packed = widen(q + i * kLanes), lane = iota<Words>((uint32_t)(i * kLanes));
    const Words bits = (Words{} + high) >> lane;
    w[i] = (to_float((packed & 15) | ((bits & 1) << 4)) - zero) * scale + offset;
    w[kHalf + i] = (to_float((packed >> 4) | (((bits >> 16) & 1) << 4)) - zero) * scale + offset;
  }
}

struct Q4_0 {
  static constexpr int width = 32, bytes = 18;
  static void decode(const uint8_t* b, int, Floats* w) { nibbles(b + 2, Table(half(b), 8, 0), w); }
};

struct Q4_1 {
  static constexpr int width = 32, bytes = 20;
  static void decode(const uint8_t* b, int, Floats* w) { nibbles(b + 4, Table(half(b), 0, half(b + 2)), w); }
};

struct Q5_0 {
  static constexpr int width = 32, bytes = 22;
  static void decode(const uint8_t* b, int, Floats* w) { nibbles5(b + 6, load<uint32_t>(b + 2), half(b), 16, 0, w); }
};

struct Q5_1 {
  static constexpr int width = 32, bytes = 24;
  static void decode(const uint8_t* b, int, Floats* w) {
    nibbles5(b + 8, load<uint32_t>(b + 4), half(b), 0, half(b + 2), w);
  }
};

struct Q8_0 {
  static constexpr int width = 32, bytes = 34;
  static void decode(const uint8_t* b, int, Floats* w) {
    const float scale = half(b);
    for (int i = 0; i < kVectors; ++i)
      w[i] = __builtin_convertvector(widen_signed(b + 2 + i * kLanes), Floats) * scale;
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

struct Q4_K {
  static constexpr int width = 256, bytes = 144;
  static void decode(const uint8_t* b, int part, Floats* w) {
    int scale, min;
    scale_min(b + 4, part, &scale, &min);
    const Table table(half(b) * scale, 0, -(half(b + 2) * min));
    const uint8_t* q = b + 16 + part / 2 * 32;
    for (int i = 0; i < kVectors; ++i) w[i] = table[widen(q + i * kLanes) >> (part % 2 * 4)];
  }
};

struct Q5_K {
  static constexpr int width = 256, bytes = 176;
  static void decode(const uint8_t* b, int part, Floats* w) {
    int scale, min;
    scale_min(b + 4, part, &scale, &min);
    const float d = half(b) * scale, offset = -(half(b + 2) * min);
    const uint8_t *high = b + 16, *q = b + 48 + part / 2 * 32;
    for (int i = 0; i < kVectors; ++i) {
      const Words bit = (widen(high + i * kLanes) >> part) & 1;
      w[i] = to_float(((widen(q + i * kLanes) >> (part % 2 * 4)) & 15) | (bit << 4)) * d + offset;
    }
  }
};

struct Q6_K {
  static constexpr int width = 256, bytes = 210;
  static void decode(const uint8_t* b, int part, Floats* w) {
    const int n = part / 4, r = part % 4;
    const uint8_t *low = b + 64 * n + 32 * (r % 2), *high = b + 128 + 32 * n, *scales = b + 192 + 8 * n + 2 * r;
    const float d = half(b + 208);
    for (int i = 0; i < kVectors; ++i) {
      const Words bits = (widen(high + i * kLanes) >> (2 * r)) & 3;
      const Words q = ((widen(low + i * kLanes) >> (r / 2 * 4)) & 15) | (bits << 4);
      w[i] = (to_float(q) - 32.0f) * (d * (int8_t)scales[i * kLanes / 16]);
    }
  }
};

// R rows of weights times M rows of x.
template <class Kind, int R, int M>
inline void tile(const float* x, int64_t in, const uint8_t* w, int64_t row_bytes, float* y, int64_t out) {
  Floats total[R][M] = {};
  for (int64_t block = 0, at = 0; block < in / Kind::width; ++block)
    for (int part = 0; part < Kind::width / kUnit; ++part, at += kUnit)
      for (int r = 0; r < R; ++r) {
        Floats unit[kVectors];
        Kind::decode(w + r * row_bytes + block * Kind::bytes, part, unit);
        for (int m = 0; m < M; ++m)
          for (int i = 0; i < kVectors; ++i) total[r][m] += unit[i] * load<Floats>(x + m * in + at + i * kLanes);
      }
  for (int r = 0; r < R; ++r)
    for (int m = 0; m < M; ++m) y[m * out + r] = sum(total[r][m]);
}

// Rows of weights that a tile of M rows of x takes together, for independent chains of additions.
template <class Kind, int M>
void tiles(const float* x, int64_t in, const uint8_t* w, int64_t row_bytes, float* y, int64_t out, int64_t rows) {
  constexpr int R = M == 1 ? 4 : M <= 3 ? 2 : 1;
  int64_t r = 0;
  for (; r + R <= rows; r += R) tile<Kind, R, M>(x, in, w + r * row_bytes, row_bytes, y + r, out);
  for (; r < rows; ++r) tile<Kind, 1, M>(x, in, w + r * row_bytes, row_bytes, y + r, out);
}

template <class Kind>
void matmul_rows(const float* x, int64_t tokens, int64_t in, const uint8_t* w, float* y, int64_t out, int64_t first,
                 int64_t last) {
  const int64_t row_bytes = in / Kind::width * Kind::bytes, rows = last - first;
  w += first * row_bytes;
  y += first;
  for (int64_t m = 0; m < tokens; m += kMaxTile, x += kMaxTile * in, y += kMaxTile * out) switch (tokens - m) {
      case 1: tiles<Kind, 1>(x, in, w, row_bytes, y, out, rows); break;
      case 2: tiles<Kind, 2>(x, in, w, row_bytes, y, out, rows); break;
      case 3: tiles<Kind, 3>(x, in, w, row_bytes, y, out, rows); break;
      case 4: tiles<Kind, 4>(x, in, w, row_bytes, y, out, rows); break;
      case 5: tiles<Kind, 5>(x, in, w, row_bytes, y, out, rows); break;
      case 6: tiles<Kind, 6>(x, in, w, row_bytes, y, out, rows); break;
      case 7: tiles<Kind, 7>(x, in, w, row_bytes, y, out, rows); break;
      default: tiles<Kind, kMaxTile>(x, in, w, row_bytes, y, out, rows);
    }
}

template <class Kind>
void dequantize_rows(const uint8_t* w, float* y, int64_t in, int64_t first, int64_t last) {
  w += first * (in / Kind::width) * Kind::bytes;
  y += first * in;
  for (int64_t block = 0; block < (last - first) * (in / Kind::width); ++block, w += Kind::bytes)
    for (int part = 0; part < Kind::width / kUnit; ++part, y += kUnit) {
      Floats unit[kVectors];
      Kind::decode(w, part, unit);
      std::memcpy(y, unit, sizeof unit);
    }
}

// Calls `f` with the kind of that name.
template <class F>
ffi::Error with_kind(std::string_view kind, F f) {
  if (kind == "Q4_0") return f(Q4_0{});
  if (kind == "Q4_1") return f(Q4_1{});
  if (kind == "Q5_0") return f(Q5_0{});
  if (kind == "Q5_1") return f(Q5_1{});
  if (kind == "Q8_0") return f(Q8_0{});
  if (kind == "Q4_K") return f(Q4_K{});
  if (kind == "Q5_K") return f(Q5_K{});
  if (kind == "Q6_K") return f(Q6_K{});
  return ffi::Error::InvalidArgument("unknown GGUF type " + std::string(kind));
}

using Dimensions = ffi::Span<const int64_t>;

// Every shape comes from the program that called: check all of them before a pointer is used.
template <class Kind>
ffi::Error check(Dimensions w, int64_t in) {
  if (w.size() < 2) return ffi::Error::InvalidArgument("blocks must be [out, row_bytes]");
  for (size_t i = 0; i + 2 < w.size(); ++i)
    if (w[i] != 1) return ffi::Error::InvalidArgument("blocks must not be batched");
  if (in <= 0 || in % Kind::width || w.back() != in / Kind::width * Kind::bytes)
    return ffi::Error::InvalidArgument("a row of " + std::to_string(w.back()) + " bytes does not hold " +
                                       std::to_string(in) + " weights");
  return ffi::Error::Success();
}

ffi::Error matmul(ffi::ThreadPool pool, ffi::Buffer<ffi::F32> x, ffi::Buffer<ffi::U8> w, std::string_view kind,
                  ffi::ResultBuffer<ffi::F32> y) {
  return with_kind(kind, [&](auto k) {
    using Kind = decltype(k);
    const Dimensions from = x.dimensions(), blocks = w.dimensions(), to = y->dimensions();
    if (from.size() < 1 || to.size() != from.size()) return ffi::Error::InvalidArgument("x and result differ in rank");
    const int64_t in = from.back();
    if (ffi::Error error = check<Kind>(blocks, in); error.failure()) return error;
    const int64_t out = blocks[blocks.size() - 2], tokens = x.element_count() / in;
    if (to.back() != out || (int64_t)y->element_count() != tokens * out)
      return ffi::Error::InvalidArgument("the result must be [..., " + std::to_string(out) + "]");
    const float* from_data = x.typed_data();
    const uint8_t* data = w.typed_data();
    float* to_data = y->typed_data();
    parallel(pool.num_threads(), out, in * out * (2 + tokens) / 2, [=](int64_t first, int64_t last) {
      matmul_rows<Kind>(from_data, tokens, in, data, to_data, out, first, last);
    });
    return ffi::Error::Success();
  });
}

ffi::Error dequantize(ffi::ThreadPool pool, ffi::Buffer<ffi::U8> w, std::string_view kind,
                      ffi::ResultBuffer<ffi::F32> y) {
  return with_kind(kind, [&](auto k) {
    using Kind = decltype(k);
    const Dimensions blocks = w.dimensions(), to = y->dimensions();
    if (to.size() != 2) return ffi::Error::InvalidArgument("the result must be [out, in]");
    const int64_t in = to.back();
    if (ffi::Error error = check<Kind>(blocks, in); error.failure()) return error;
    const int64_t out = blocks[blocks.size() - 2];
    if (to[0] != out) return ffi::Error::InvalidArgument("the result must have " + std::to_string(out) + " rows");
    const uint8_t* data = w.typed_data();
    float* to_data = y->typed_data();
    parallel(pool.num_threads(), out, in * out,
             [=](int64_t first, int64_t last) { dequantize_rows<Kind>(data, to_data, in, first, last); });
    return ffi::Error::Success();
  });
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(vjax_ggml_matmul, matmul,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Arg<ffi::Buffer<ffi::U8>>()
                                  .Attr<std::string_view>("kind")
                                  .Ret<ffi::Buffer<ffi::F32>>());

XLA_FFI_DEFINE_HANDLER_SYMBOL(vjax_ggml_dequantize, dequantize,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<ffi::Buffer<ffi::U8>>()
                                  .Attr<std::string_view>("kind")
                                  .Ret<ffi::Buffer<ffi::F32>>());
