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
AVX512 SPARSEWIRE_INLINE uint64_t mark(const T* residual, const T* x, Bits<T> floor) {
  constexpr size_t kLanes = 64 / sizeof(T), kVectors = kWord / kLanes;
  uint64_t word = 0;
  for (size_t i = 0; i < kVectors; ++i) {
    const __m512i values = kMode == Mode::list ? load(x + i * kLanes) : sum(residual + i * kLanes, x + i * kLanes);
    word |= above(values, floor) << (i * kLanes);
  }
  return word;
}

template <class T, Mode kMode>
AVX512 size_t scan(const T* residual, const T* x, size_t n, int32_t first, Bits<T> floor, int32_t* indices, T* values) {
  uint64_t words[kBlock<T> / kWord];
  for (size_t w = 0; w < n / kWord; ++w) words[w] = mark<kMode>(residual + w * kWord, x + w * kWord, floor);
  return list<T, kMode>(words, residual, x, n, first, floor, indices, values);
}

template <class T>
AVX512 void combine(const Terms<T>& terms, const T* x, size_t n, T* out) {
  combine_all(terms, x, n, out);
}

template <class T>
AVX512 void advance(T* residual, T* velocity, const Terms<T>& terms, const T* x, size_t n) {
  advance_all(residual, velocity, terms, x, n);
}

AVX512 uint64_t read(const char* data, size_t bytes) { return read_all<Vector>(data, bytes); }

}  // namespace

const Scans avx512_scans = {
    {{scan<float, Mode::list>, scan<float, Mode::sum>}, combine<float>, advance<float>},
    {{scan<double, Mode::list>, scan<double, Mode::sum>}, combine<double>, advance<double>},
    read,
};

}  // namespace sparsewire
#endif
