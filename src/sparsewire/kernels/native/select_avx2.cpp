// The dense pass of selection in AVX2.
#if defined(__x86_64__)
#include <immintrin.h>

#include "select_scan.hpp"

#define AVX2 __attribute__((target("avx2,bmi,bmi2,popcnt,lzcnt")))

namespace sparsewire {
namespace {

typedef uint64_t Vector __attribute__((vector_size(32)));

template <Mode kMode>
AVX2 SPARSEWIRE_INLINE __m256i above(float* residual, const float* x, __m256i floor) {
  __m256 value = _mm256_loadu_ps(x);
  if constexpr (kMode != Mode::list) value = _mm256_add_ps(_mm256_loadu_ps(residual), value);
  if constexpr (kMode == Mode::add) _mm256_storeu_ps(residual, value);
  const __m256i bits = _mm256_and_si256(_mm256_castps_si256(value), _mm256_set1_epi32(kMaxBits<float>));
  return _mm256_cmpgt_epi32(bits, floor);
}

template <Mode kMode>
AVX2 SPARSEWIRE_INLINE int above(double* residual, const double* x, __m256i floor) {
  __m256d value = _mm256_loadu_pd(x);
  if constexpr (kMode != Mode::list) value = _mm256_add_pd(_mm256_loadu_pd(residual), value);
  if constexpr (kMode == Mode::add) _mm256_storeu_pd(residual, value);
  const __m256i bits = _mm256_and_si256(_mm256_castpd_si256(value), _mm256_set1_epi64x(kMaxBits<double>));
  return _mm256_movemask_pd(_mm256_castsi256_pd(_mm256_cmpgt_epi64(bits, floor)));
}

// 32 comparisons narrow to bytes; packing works within 128-bit lanes, hence the permutation.
template <Mode kMode>
AVX2 SPARSEWIRE_INLINE uint32_t mark32(float* residual, const float* x, __m256i floor) {
  const __m256i a = above<kMode>(residual, x, floor), b = above<kMode>(residual + 8, x + 8, floor);
  const __m256i c = above<kMode>(residual + 16, x + 16, floor), d = above<kMode>(residual + 24, x + 24, floor);
  const __m256i bytes = _mm256_packs_epi16(_mm256_packs_epi32(a, b), _mm256_packs_epi32(c, d));
  const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
  return static_cast<uint32_t>(_mm256_movemask_epi8(_mm256_permutevar8x32_epi32(bytes, order)));
}

template <Mode kMode>
AVX2 SPARSEWIRE_INLINE uint64_t mark(float* residual, const float* x, int32_t floor) {
  const __m256i floors = _mm256_set1_epi32(floor);
  const uint64_t low = mark32<kMode>(residual, x, floors);
  return low | static_cast<uint64_t>(mark32<kMode>(residual + 32, x + 32, floors)) << 32;
}

template <Mode kMode>
AVX2 SPARSEWIRE_INLINE uint64_t mark(double* residual, const double* x, int64_t floor) {
  const __m256i floors = _mm256_set1_epi64x(floor);
  uint64_t word = 0;
  for (size_t i = 0; i < kWord; i += 4) word |= static_cast<uint64_t>(above<kMode>(residual + i, x + i, floors)) << i;
  return word;
}

template <class T, Mode kMode>
AVX2 size_t scan(T* residual, const T* x, size_t n, int32_t first, Bits<T> floor, int32_t* indices, T* values) {
  uint64_t words[kBlock<T> / kWord];
  for (size_t w = 0; w < n / kWord; ++w) words[w] = mark<kMode>(residual + w * kWord, x + w * kWord, floor);
  return list<T, kMode>(words, residual, x, n, first, floor, indices, values);
}

AVX2 uint64_t read(const char* data, size_t bytes) { return read_all<Vector>(data, bytes); }

}  // namespace

const Scans avx2_scans = {
    {scan<float, Mode::list>, scan<float, Mode::add>, scan<float, Mode::sum>},
    {scan<double, Mode::list>, scan<double, Mode::add>, scan<double, Mode::sum>},
    read,
};

}  // namespace sparsewire
#endif
