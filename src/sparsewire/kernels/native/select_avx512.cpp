// The dense pass of selection in AVX-512.
#if defined(__x86_64__)
#include <immintrin.h>

#include "select_scan.hpp"

#define AVX512 __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,bmi,bmi2,popcnt,lzcnt")))

namespace sparsewire {
namespace {

typedef uint64_t Vector __attribute__((vector_size(64)));

template <Mode kMode>
AVX512 SPARSEWIRE_INLINE uint64_t above(float* residual, const float* x, int32_t floor) {
  __m512 value = _mm512_loadu_ps(x);
  if constexpr (kMode != Mode::list) value = _mm512_add_ps(_mm512_loadu_ps(residual), value);
  if constexpr (kMode == Mode::add) _mm512_storeu_ps(residual, value);
  const __m512i bits = _mm512_and_si512(_mm512_castps_si512(value), _mm512_set1_epi32(kMaxBits<float>));
  return _mm512_cmpgt_epi32_mask(bits, _mm512_set1_epi32(floor));
}

template <Mode kMode>
AVX512 SPARSEWIRE_INLINE uint64_t above(double* residual, const double* x, int64_t floor) {
  __m512d value = _mm512_loadu_pd(x);
  if constexpr (kMode != Mode::list) value = _mm512_add_pd(_mm512_loadu_pd(residual), value);
  if constexpr (kMode == Mode::add) _mm512_storeu_pd(residual, value);
  const __m512i bits = _mm512_and_si512(_mm512_castpd_si512(value), _mm512_set1_epi64(kMaxBits<double>));
  return _mm512_cmpgt_epi64_mask(bits, _mm512_set1_epi64(floor));
}

template <Mode kMode, class T>
AVX512 SPARSEWIRE_INLINE uint64_t mark(T* residual, const T* x, Bits<T> floor) {
  uint64_t word = 0;
  for (size_t i = 0; i < kWord; i += 64 / sizeof(T)) word |= above<kMode>(residual + i, x + i, floor) << i;
  return word;
}

template <class T, Mode kMode>
AVX512 size_t scan(T* residual, const T* x, size_t n, int32_t first, Bits<T> floor, int32_t* indices, T* values) {
  uint64_t words[kBlock<T> / kWord];
  for (size_t w = 0; w < n / kWord; ++w) words[w] = mark<kMode>(residual + w * kWord, x + w * kWord, floor);
  return list<T, kMode>(words, residual, x, n, first, floor, indices, values);
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
