// Every kernel over awkward shapes, in buffers that end exactly where the data does. `test_library.py` builds it with
// sanitizers and runs it.
#include <cstdio>
#include <cstdlib>
#include <memory>

#include "ggml_blocks.cc"
#include "paged_attention.cc"

template <class T>
std::unique_ptr<T[]> exact(int64_t count) {
  return std::unique_ptr<T[]>(new T[count]);
}

void expect(bool right, const char* what) {
  if (right) return;
  std::printf("wrong: %s\n", what);
  std::exit(1);
}

template <class Kind>
void products(int64_t tokens, int64_t out, int64_t blocks, bool rounded) {
  const int64_t in = blocks * Kind::width;
  auto w = exact<uint8_t>(out * blocks * Kind::bytes);
  for (int64_t i = 0; i < out * blocks * Kind::bytes; ++i) w[i] = (i * 2654435761u >> 13) & 0x3b;  // scales stay small
  auto x = exact<float>(tokens * in), y = exact<float>(tokens * out), dense = exact<float>(out * in);
  for (int64_t i = 0; i < tokens * in; ++i) x[i] = static_cast<float>(i % 7) - 3;
  auto units = exact<Rounded>(tokens * in / kUnit);
  round_units<Kind>(x.get(), units.get(), tokens * in / kUnit);
  if (rounded)
    rounded_rows<Kind>(units.get(), tokens, in, w.get(), y.get(), out, 0, out);
  else
    matmul_rows<Kind>(x.get(), tokens, in, w.get(), y.get(), out, 0, out);
  parallel(3, out, int64_t{1} << 30,
           [&](int64_t first, int64_t last) { dequantize_rows<Kind>(w.get(), dense.get(), in, first, last); });
  for (int64_t m = 0; m < tokens; ++m)
    for (int64_t r = 0; r < out; ++r) {
      double sum = 0, size = 1e-6;
      for (int64_t i = 0; i < in; ++i) {
        const Rounded& unit = units[(m * in + i) / kUnit];
        const double factor = rounded ? double(unit.q[i % kUnit]) * unit.scale : x[m * in + i];
        const double term = factor * dense[r * in + i];
        sum += term;
        size += std::fabs(term);
      }
      expect(std::fabs(y[m * out + r] - sum) <= 1e-5 * size, "a product");
    }
}

template <class Kind>
void kind() {
  for (int64_t tokens : {1, 3, 4, 9})
    for (int64_t out : {1, 3, 4, 13})
      for (int64_t blocks : {1, 3})
        for (bool rounded : {false, true}) products<Kind>(tokens, out, blocks, rounded);
}

void attention(int64_t dim, int64_t keys, int64_t window, bool sinks) {
  const int64_t heads = 2, groups = 3, page_size = 16, width = (keys + page_size - 1) / page_size, pages = width + 1;
  const int64_t size = pages * page_size * heads * dim, rows = 2;
  auto q = exact<float>(rows * heads * groups * dim), out = exact<float>(rows * heads * groups * dim);
  auto k = exact<float>(size), v = exact<float>(size);
  auto sink = exact<float>(heads * groups);
  std::fill_n(sink.get(), heads * groups, -1e9f);  // next to nothing
  auto table = exact<int32_t>(rows * width), kv_len = exact<int32_t>(rows);
  std::fill_n(q.get(), rows * heads * groups * dim, 0.1f);
  std::fill_n(k.get(), size, 0.2f);
  std::fill_n(v.get(), size, 0.5f);
  for (int64_t i = 0; i < rows * width; ++i) table[i] = static_cast<int32_t>(i % 2 ? 1 << 30 : width - i);  // some wild
  kv_len[0] = static_cast<int32_t>(keys);
  kv_len[1] = 1 << 30;
  const Problem p{q.get(),  k.get(), v.get(),   sinks ? sink.get() : nullptr, table.get(), kv_len.get(), out.get(), rows,  heads,
                  groups,   dim,     pages,     page_size,   width,        0.125f,    0.0f,  window};
  std::vector<float> weights;
  for (int64_t item = 0; item < rows * heads * groups; ++item) attend(p, item, weights);
  for (int64_t i = 0; i < rows * heads * groups * dim; ++i) expect(std::fabs(out[i] - 0.5f) < 1e-5f, "attention");
}

int main() {
  kind<Q4_0>();
  kind<Q4_1>();
  kind<Q5_0>();
  kind<Q5_1>();
  kind<Q8_0>();
  kind<Q2_K>();
  kind<Q3_K>();
  kind<Q4_K>();
  kind<Q5_K>();
  kind<Q6_K>();
  kind<IQ2_XXS>();
  kind<IQ3_XXS>();
  kind<IQ4_NL>();
  kind<IQ4_XS>();
  kind<MXFP4>();
  kind<NVFP4>();
  for (int64_t dim : {16, 64, 80})
    for (int64_t keys : {1, 15, 16, 100})
      for (int64_t window : {0, 1, 40})
        for (bool sinks : {false, true}) attention(dim, keys, window, sinks);
  std::puts("clean");
}
