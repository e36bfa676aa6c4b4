// Sparse entries into a dense array:
// accumulate: the sum of parts, block by block: a block is zeroed and then filled while it is in cache.
// scatter: entries overwrite elements of the array, which are prefetched, as each write waits for memory.
#if defined(__x86_64__)
#include <emmintrin.h>
#endif

#include <algorithm>

#include "parts.hpp"

namespace sparsewire {
namespace {

constexpr size_t kBlock = size_t{1} << 14;
constexpr size_t kCacheBytes = size_t{1} << 24;  // a larger output would not stay in cache anyway

// Writing around the cache saves reading the destination first.
void copy_past_cache(void* to, const void* from, size_t bytes) {
#if defined(__x86_64__)
  auto* target = static_cast<__m128i*>(to);
  const auto* source = static_cast<const __m128i*>(from);
  for (; bytes >= 64; bytes -= 64, target += 4, source += 4)
    for (int i = 0; i < 4; ++i) _mm_stream_si128(target + i, _mm_load_si128(source + i));
  _mm_sfence();  // streaming stores are ordered by nothing else
  to = target, from = source;
#endif
  std::memcpy(to, from, bytes);
}

template <class T>
void accumulate_range(T* out, size_t begin, size_t end, const std::vector<AnyPart<T>>& parts, T scale, bool around,
                      size_t* cursors) {
  alignas(64) T apart[kBlock];
  seek_parts(parts, begin, cursors);
  for (size_t at = begin; at < end; at += kBlock) {
    const size_t stop = std::min(end, at + kBlock), bytes = (stop - at) * sizeof(T);
    T* block = around ? apart : out + at;
    std::memset(block, 0, bytes);
    add_parts(block, at, stop, parts, scale, cursors);
    if (around) copy_past_cache(out + at, apart, bytes);
  }
}

template <class T>
void accumulate(const InOut<T>& out, const nb::sequence& list, double factor, int threads) {
  const std::vector<AnyPart<T>> parts = to_parts<T>(list);
  nb::gil_scoped_release release;
  require_parts(parts, out.size());
  const bool around = out.size() * sizeof(T) > kCacheBytes && reinterpret_cast<uintptr_t>(out.data()) % 16 == 0;
  const size_t workers = std::clamp<size_t>(out.size() / kWorker, 1, std::max(1, threads));
  const size_t length = (out.size() / kBlock / workers + 1) * kBlock;
  std::vector<size_t> cursors(workers * parts.size());
  parallel(static_cast<int>(workers), [&](int worker) {
    const size_t begin = std::min(out.size(), worker * length), end = std::min(out.size(), begin + length);
    accumulate_range(out.data(), begin, end, parts, static_cast<T>(factor), around,
                     cursors.data() + worker * parts.size());
  });
}

template <class T, class Index>
void scatter_add(const InOut<T>& out, const In<Index>& indices, const In<T>& values, double scale) {
  constexpr size_t kAhead = 32;
  const size_t n = indices.size();
  nb::gil_scoped_release release;
  require(n == values.size() && fits(indices.data(), n, out.size()),
          "the entries' indices must ascend and lie within the output, one for each value");
  T* to = out.data();
  const Index* at = indices.data();
  const T* from = values.data();
  const T factor = static_cast<T>(scale);
  for (size_t i = 0; i < n; ++i) {
    if (i + kAhead < n) __builtin_prefetch(to + at[i + kAhead], 1);
    to[at[i]] += factor * from[i];
  }
}

template <class T>
void bind(nb::module_& m) {
  using nb::arg;
  const auto out = arg("out").noconvert(), indices = arg("indices").noconvert(), values = arg("values").noconvert();
  m.def("scatter_add", &scatter_add<T, int32_t>, out, indices, values, arg("scale") = 1.0);
  m.def("scatter_add", &scatter_add<T, int64_t>, out, indices, values, arg("scale") = 1.0);
  m.def("accumulate", &accumulate<T>, arg("out").noconvert(), arg("parts"), arg("scale"), arg("threads") = 1);
}

const Binder binder([](nb::module_& m) {
  bind<float>(m);
  bind<double>(m);
});

}  // namespace
}  // namespace sparsewire
