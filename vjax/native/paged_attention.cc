// Attention of one new token a request over the paged key/value cache, called by XLA through its FFI.
//
//   vjax_paged_decode  q f32 [S, K, G, D], k and v pools f32 [pages, page_size, K, D], page table s32 [S, W],
//                      kv_len s32 [S], sinks f32 [K * G] or [0] -> f32 [S, K, G, D]
//
// Row s attends to its `kv_len[s]` first keys, the newest `window` of them if that is not 0; zeros for an unused row.
// A sink is a score of its head that takes part in the softmax and has no value.
#include <algorithm>
#include <cmath>
#include <vector>

#include "parallel.h"
#include "vectors.h"
#include "xla/ffi/api/ffi.h"

namespace ffi = xla::ffi;
using namespace vjax;

namespace {

struct Problem {
  const float *q, *k, *v, *sinks;  // no sinks: null
  const int32_t *table, *kv_len;
  float* out;
  int64_t rows, heads, groups, dim, pages, page_size, width;
  float scale, softcap;
  int64_t window;

  // Key `at` of row `row`: its place in a pool. Page ids come from the program's data, so they are kept within the pool.
  int64_t place(int64_t row, int64_t at, int64_t head) const {
    const int64_t page = std::clamp<int64_t>(table[row * width + at / page_size], 0, pages - 1);
    return ((page * page_size + at % page_size) * heads + head) * dim;
  }

  int64_t keys(int64_t row) const { return std::clamp<int64_t>(kv_len[row], 0, width * page_size); }
};

// Scores of one query against keys `first .. last`, then softmax weights that still lack their common divisor, returned.
float weigh(const Problem& p, int64_t row, int64_t head, const float* q, float sink, int64_t first, int64_t last,
            float* weights) {
  float peak = sink;
  for (int64_t at = first; at < last; ++at) {
    const float* key = p.k + p.place(row, at, head);
    Floats dot = {};
    for (int64_t d = 0; d < p.dim; d += kLanes) dot += load<Floats>(q + d) * load<Floats>(key + d);
    float score = sum(dot) * p.scale;
    if (p.softcap > 0) score = std::tanh(score / p.softcap) * p.softcap;
    weights[at - first] = score;
    peak = std::max(peak, score);
  }
  Floats total = {};
  const int64_t n = last - first, padded = (n + kLanes - 1) / kLanes * kLanes;
  std::fill(weights + n, weights + padded, -INFINITY);
  for (int64_t i = 0; i < padded; i += kLanes) {
    const Floats e = exp_negative(load<Floats>(weights + i) - peak);
    store(weights + i, e);
    total += e;
  }
  return sum(total) + std::exp(sink - peak);
}

void attend(const Problem& p, int64_t item, std::vector<float>& weights) {
  const int64_t head = item / p.groups % p.heads, row = item / p.groups / p.heads;
  const int64_t last = p.keys(row), first = p.window > 0 ? std::max<int64_t>(last - p.window, 0) : 0;
  float* out = p.out + item * p.dim;
  std::fill(out, out + p.dim, 0.0f);
  if (first >= last) return;
  weights.resize(last - first + kLanes);
  const float sink = p.sinks ? p.sinks[item % (p.heads * p.groups)] : -INFINITY;
  const float divisor = weigh(p, row, head, p.q + item * p.dim, sink, first, last, weights.data());
  constexpr int kWide = 4;  // vectors of channels that stay in registers
  int64_t d = 0;
  for (; d + kWide * kLanes <= p.dim; d += kWide * kLanes) {
    Floats sums[kWide] = {};
    for (int64_t at = first; at < last; ++at) {
      const float* value = p.v + p.place(row, at, head) + d;
      for (int i = 0; i < kWide; ++i) sums[i] += load<Floats>(value + i * kLanes) * weights[at - first];
    }
    for (int i = 0; i < kWide; ++i) store(out + d + i * kLanes, sums[i] / divisor);
  }
  for (; d < p.dim; d += kLanes) {
    Floats sums = {};
    for (int64_t at = first; at < last; ++at) sums += load<Floats>(p.v + p.place(row, at, head) + d) * weights[at - first];
    store(out + d, sums / divisor);
  }
}

using F32 = ffi::Buffer<ffi::F32>;
using S32 = ffi::Buffer<ffi::S32>;

bool same(F32::Dimensions a, F32::Dimensions b) { return std::equal(a.begin(), a.end(), b.begin(), b.end()); }

ffi::Error decode(ffi::ThreadPool pool, F32 q, F32 k, F32 v, S32 table, S32 kv_len, F32 sinks, float scale,
                  float softcap, int64_t window, ffi::ResultBuffer<ffi::F32> out) {
  const auto from = q.dimensions(), keys = k.dimensions(), pages = table.dimensions();
  if (from.size() != 4 || keys.size() != 4 || pages.size() != 2 || kv_len.dimensions().size() != 1)
    return ffi::Error::InvalidArgument("paged attention takes q of four axes, pools of four, a table of two");
  const bool sunk = sinks.element_count() > 0;
  const Problem p{q.typed_data(), k.typed_data(), v.typed_data(), sunk ? sinks.typed_data() : nullptr, table.typed_data(), kv_len.typed_data(),
                  out->typed_data(), from[0], from[1], from[2], from[3], keys[0], keys[1], pages[1],
                  scale, softcap, window};
  if (!same(v.dimensions(), keys) || !same(out->dimensions(), from) || keys[2] != p.heads || keys[3] != p.dim ||
      (sunk && static_cast<int64_t>(sinks.element_count()) != p.heads * p.groups) || pages[0] != p.rows || kv_len.dimensions()[0] != p.rows || p.dim % kLanes || p.pages < 1 || p.page_size < 1)
    return ffi::Error::InvalidArgument("paged attention: shapes do not belong together");
  int64_t total = 0;
  for (int64_t row = 0; row < p.rows; ++row) total += p.keys(row);
  parallel(pool.num_threads(), p.rows * p.heads * p.groups, total * p.heads * p.groups * p.dim,
           [&](int64_t first, int64_t last) {
             static thread_local std::vector<float> weights;
             for (int64_t item = first; item < last; ++item) attend(p, item, weights);
           });
  return ffi::Error::Success();
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(vjax_paged_decode, decode,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<F32>()
                                  .Arg<F32>()
                                  .Arg<F32>()
                                  .Arg<S32>()
                                  .Arg<S32>()
                                  .Arg<F32>()
                                  .Attr<float>("scale")
                                  .Attr<float>("softcap")
                                  .Attr<int64_t>("window")
                                  .Ret<F32>());
