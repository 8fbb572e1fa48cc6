// Products with GGUF block weights, called by XLA through its FFI. Compiled for the machine it runs on; other instruction
// sets take the plain C++ below.
//
//   vjax_ggml_matmul          x f32 [..., in], blocks u8 [1..., out, row_bytes] -> f32 [..., out]
//   vjax_ggml_matmul_rounded  the same, with x rounded to 8 bits
//   vjax_ggml_dequantize      blocks u8 [out, row_bytes], anything -> f32 [out, in]
#include <string>
#include <string_view>
#include <vector>

#include "blocks.h"
#include "parallel.h"
#include "rounded.h"
#include "xla/ffi/api/ffi.h"

namespace ffi = xla::ffi;
using namespace vjax;

namespace {

// The next kLanes signed bytes, one a lane.
inline Ints widen(const char* p) {
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

template <class Kind>
void dequantize_row(const uint8_t* w, float* y, int64_t in) {
  for (int64_t block = 0; block < in / Kind::width; ++block, w += Kind::bytes)
#pragma GCC unroll 8
    for (int part = 0; part < Kind::width / kUnit; ++part, y += kUnit) {
      const Unit unit = Kind::unpack(w, part);
      const Bytes q = unit.q - Kind::zero;
      for (int i = 0; i < kUnit; i += kLanes) {
        const int half = i * Kind::halves / kUnit;
        Floats value = __builtin_convertvector(widen(reinterpret_cast<const char*>(&q) + i), Floats) * unit.scale[half];
        if (Kind::has_least) value -= unit.least[half];
        store(y + i, value);
      }
    }
}

template <class Kind>
void dequantize_rows(const uint8_t* w, float* y, int64_t in, int64_t first, int64_t last) {
  for (int64_t r = first; r < last; ++r) dequantize_row<Kind>(w + r * (in / Kind::width) * Kind::bytes, y + r * in, in);
}

// M rows of x times one row of weights.
template <int M>
inline void dot(const float* x, int64_t in, const float* w, float* y, int64_t out) {
  Floats total[M][2] = {};
  for (int64_t at = 0; at < in; at += 2 * kLanes)
    for (int m = 0; m < M; ++m)
      for (int i = 0; i < 2; ++i) {
        const int64_t j = at + i * kLanes;
        total[m][i] += load<Floats>(w + j) * load<Floats>(x + m * in + j);
      }
  for (int m = 0; m < M; ++m) y[m * out] = sum(total[m][0] + total[m][1]);
}

// Each row of weights is decoded once, into the nearest cache.
template <class Kind>
void matmul_rows(const float* x, int64_t tokens, int64_t in, const uint8_t* w, float* y, int64_t out, int64_t first,
                 int64_t last) {
  static thread_local std::vector<float> row;
  row.resize(in);
  for (int64_t r = first; r < last; ++r) {
    dequantize_row<Kind>(w + r * (in / Kind::width) * Kind::bytes, row.data(), in);
    int64_t m = 0;
    for (; m + 4 <= tokens; m += 4) dot<4>(x + m * in, in, row.data(), y + m * out + r, out);
    for (; m < tokens; ++m) dot<1>(x + m * in, in, row.data(), y + m * out + r, out);
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
  if (kind == "Q2_K") return f(Q2_K{});
  if (kind == "Q3_K") return f(Q3_K{});
  if (kind == "Q4_K") return f(Q4_K{});
  if (kind == "Q5_K") return f(Q5_K{});
  if (kind == "Q6_K") return f(Q6_K{});
  if (kind == "IQ2_XXS") return f(IQ2_XXS{});
  if (kind == "IQ3_XXS") return f(IQ3_XXS{});
  if (kind == "IQ4_NL") return f(IQ4_NL{});
  if (kind == "IQ4_XS") return f(IQ4_XS{});
  if (kind == "MXFP4") return f(MXFP4{});
  if (kind == "NVFP4") return f(NVFP4{});
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

// `rounded`: whether x is rounded to 8 bits.
template <bool rounded>
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
    const uint8_t* data = w.typed_data();
    float* to_data = y->typed_data();
    if constexpr (rounded) {
      static thread_local std::vector<Rounded> units;
      units.resize(tokens * in / kUnit);
      round_units<Kind>(x.typed_data(), units.data(), tokens * in / kUnit);
      const Rounded* from_data = units.data();
      parallel(pool.num_threads(), out, in * out * (1 + tokens) / 4, [=](int64_t first, int64_t last) {
        rounded_rows<Kind>(from_data, tokens, in, data, to_data, out, first, last);
      });
    } else {
      const float* from_data = x.typed_data();
      parallel(pool.num_threads(), out, in * out * (2 + tokens) / 2, [=](int64_t first, int64_t last) {
        matmul_rows<Kind>(from_data, tokens, in, data, to_data, out, first, last);
      });
    }
    return ffi::Error::Success();
  });
}

// Further arguments are there to be waited for.
ffi::Error dequantize(ffi::ThreadPool pool, ffi::Buffer<ffi::U8> w, ffi::RemainingArgs, std::string_view kind,
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

XLA_FFI_DEFINE_HANDLER_SYMBOL(vjax_ggml_matmul, matmul<false>,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Arg<ffi::Buffer<ffi::U8>>()
                                  .Attr<std::string_view>("kind")
                                  .Ret<ffi::Buffer<ffi::F32>>());

XLA_FFI_DEFINE_HANDLER_SYMBOL(vjax_ggml_matmul_rounded, matmul<true>,
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
                                  .RemainingArgs()
                                  .Attr<std::string_view>("kind")
                                  .Ret<ffi::Buffer<ffi::F32>>());
