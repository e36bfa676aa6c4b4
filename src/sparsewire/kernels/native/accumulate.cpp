// Sparse entries into a dense array:
// accumulate: the sum of parts, block by block: a block is zeroed and then filled while it is in cache.
// scatter: entries overwrite elements of the array, which are prefetched, as each write waits for memory.
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <algorithm>

#include "parts.hpp"

namespace sparsewire {
namespace {

constexpr size_t kBlock = size_t{1} << 13;
constexpr size_t kCacheBytes = size_t{1} << 24;  // a larger output would not stay in cache anyway

void move_through_cache(void* to, void* from, size_t bytes) {
  std::memcpy(to, from, bytes);
  std::memset(from, 0, bytes);
}

#if defined(__x86_64__)
__attribute__((target("avx2"))) void move_around_cache(__m256i* to, __m256i* from, size_t bytes) {
  for (; bytes >= 64; bytes -= 64, to += 2, from += 2)
    for (int i = 0; i < 2; ++i) {
      _mm256_stream_si256(to + i, _mm256_load_si256(from + i));
      _mm256_store_si256(from + i, _mm256_setzero_si256());
    }
  _mm_sfence();  // streaming stores are ordered by nothing else
  move_through_cache(to, from, bytes);
}
#endif

// Moves a block and leaves zeros behind, which saves clearing it in a pass of its own. Writing around the cache saves
// reading the destination first.
void move(void* to, void* from, size_t bytes) {
#if defined(__x86_64__)
  if (isa() != Isa::plain && reinterpret_cast<uintptr_t>(to) % 32 == 0)
    return move_around_cache(static_cast<__m256i*>(to), static_cast<__m256i*>(from), bytes);
#endif
  move_through_cache(to, from, bytes);
}

template <class T>
void accumulate_range(T* out, size_t begin, size_t end, const std::vector<AnyPart<T>>& parts, T scale, bool apart,
                      size_t* cursors) {
  alignas(64) T zeros[kBlock] = {};
  seek_parts(parts, begin, cursors);
  each_block(out, begin, end, kBlock, [&](size_t at, size_t stop) {
    const size_t bytes = (stop - at) * sizeof(T);
    T* block = apart ? zeros : out + at;
    if (!apart) std::memset(block, 0, bytes);
    add_parts(block, at, stop, parts, scale, cursors);
    if (apart) move(out + at, block, bytes);
  });
}

template <class T>
void accumulate(const InOut<T>& out, const nb::sequence& list, double factor, int threads) {
  const std::vector<AnyPart<T>> parts = to_parts<T>(list);
  nb::gil_scoped_release release;
  require_parts(parts, out.size());
  const bool apart = out.size() * sizeof(T) > kCacheBytes;
  const size_t workers = std::clamp<size_t>(out.size() / kWorker, 1, std::max(1, threads));
  const size_t length = (out.size() / kBlock / workers + 1) * kBlock;
  std::vector<size_t> cursors(workers * parts.size());
  parallel(static_cast<int>(workers), [&](int worker) {
    const size_t begin = std::min(out.size(), worker * length), end = std::min(out.size(), begin + length);
    accumulate_range(out.data(), begin, end, parts, static_cast<T>(factor), apart,
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
