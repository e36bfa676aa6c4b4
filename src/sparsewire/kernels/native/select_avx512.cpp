// The dense pass of selection in AVX-512.
#if defined(__x86_64__)
#include <immintrin.h>

#include "select_scan.hpp"

#define AVX512 __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,bmi,bmi2,popcnt,lzcnt")))

namespace sparsewire {
namespace {

typedef uint64_t Vector __attribute__((vector_size(64)));

AVX512 SPARSEWIRE_INLINE __m512i load(const float* x) { return _mm512_castps_si512(_mm512_loadu_ps(x)); }
AVX512 SPARSEWIRE_INLINE __m512i load(const double* x) { return _mm512_castpd_si512(_mm512_loadu_pd(x)); }

AVX512 SPARSEWIRE_INLINE __m512i sum(const float* residual, const float* x) {
  return _mm512_castps_si512(_mm512_add_ps(_mm512_loadu_ps(residual), _mm512_loadu_ps(x)));
}
AVX512 SPARSEWIRE_INLINE __m512i sum(const double* residual, const double* x) {
  return _mm512_castpd_si512(_mm512_add_pd(_mm512_loadu_pd(residual), _mm512_loadu_pd(x)));
}

AVX512 SPARSEWIRE_INLINE uint64_t above(__m512i values, int32_t floor) {
  const __m512i bits = _mm512_and_si512(values, _mm512_set1_epi32(kMaxBits<float>));
  return _mm512_cmpgt_epi32_mask(bits, _mm512_set1_epi32(floor));
}
AVX512 SPARSEWIRE_INLINE uint64_t above(__m512i values, int64_t floor) {
  const __m512i bits = _mm512_and_si512(values, _mm512_set1_epi64(kMaxBits<double>));
  return _mm512_cmpgt_epi64_mask(bits, _mm512_set1_epi64(floor));
}

template <Mode kMode, class T>
AVX512 SPARSEWIRE_INLINE uint64_t mark(T* residual, const T* x, Bits<T> floor, [[maybe_unused]] Saved<T>* saved) {
  constexpr size_t kLanes = 64 / sizeof(T), kVectors = kWord / kLanes;
  __m512i values[kVectors];
  uint64_t word = 0, endless = 0;
  for (size_t i = 0; i < kVectors; ++i) {
    values[i] = kMode == Mode::list ? load(x + i * kLanes) : sum(residual + i * kLanes, x + i * kLanes);
    word |= above(values[i], floor) << (i * kLanes);
    if constexpr (kMode == Mode::add) endless |= above(values[i], kInfinity<T> - 1);
  }
  if constexpr (kMode == Mode::add) {
    if (__builtin_expect(endless != 0, 0)) saved->save(residual, kWord);
    for (size_t i = 0; i < kVectors; ++i) _mm512_storeu_si512(residual + i * kLanes, values[i]);
  }
  return word;
}

template <class T, Mode kMode>
AVX512 size_t scan(T* residual, const T* x, size_t n, int32_t first, Bits<T> floor, int32_t* indices, T* values,
                   Saved<T>* saved) {
  uint64_t words[kBlock<T> / kWord];
  for (size_t w = 0; w < n / kWord; ++w) words[w] = mark<kMode>(residual + w * kWord, x + w * kWord, floor, saved);
  return list<T, kMode>(words, residual, x, n, first, floor, indices, values, saved);
}

AVX512 uint64_t read(const char* data, size_t bytes) { return read_all<Vector>(data, bytes); }

}  // namespace

const Scans avx512_scans = {
    {scan<float, Mode::list>, scan<float, Mode::add>, scan<float, Mode::sum>},
    {scan<double, Mode::list>, scan<double, Mode::add>, scan<double, Mode::sum>},
    read,
};

}  // namespace sparsewire
#endif
