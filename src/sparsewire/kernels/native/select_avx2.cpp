// The dense pass of selection in AVX2.
#if defined(__x86_64__)
#include <immintrin.h>

#include "select_scan.hpp"

#define AVX2 __attribute__((target("avx2,bmi,bmi2,popcnt,lzcnt")))

namespace sparsewire {
namespace {

typedef uint64_t Vector __attribute__((vector_size(32)));

constexpr size_t kVectors = 4;  // that are loaded at once: with more, sums and magnitudes do not fit the registers

AVX2 SPARSEWIRE_INLINE __m256i load(const float* x) { return _mm256_castps_si256(_mm256_loadu_ps(x)); }

template <class T>
struct Lanes {
  typedef T type __attribute__((vector_size(32)));
};

AVX2 SPARSEWIRE_INLINE __m256i in_all_lanes(int32_t bits) { return _mm256_set1_epi32(bits); }
AVX2 SPARSEWIRE_INLINE __m256i in_all_lanes(int64_t bits) { return _mm256_set1_epi64x(bits); }

// What the floor is compared with, for the next vectors.
template <Mode kMode, class T>
AVX2 SPARSEWIRE_INLINE void keys(const Terms<T>& terms, const T* x, size_t at, const Cut<T>& cut, __m256i* out) {
  constexpr size_t kLanes = 32 / sizeof(T);
  const __m256i mask = in_all_lanes(cut.mask), flip = in_all_lanes(cut.flip);
  for (size_t i = 0; i < kVectors; ++i) {
    typename Lanes<T>::type values;
    load_sum<kMode>(terms, x, at + i * kLanes, values);
    std::memcpy(&out[i], &values, sizeof values);
    out[i] = _mm256_xor_si256(_mm256_and_si256(out[i], mask), flip);
  }
}

// 32 comparisons narrow to bytes; packing works within 128-bit lanes, hence the permutation.
AVX2 SPARSEWIRE_INLINE uint64_t mark32(const __m256i* bits, __m256i floor) {
  const __m256i a = _mm256_cmpgt_epi32(bits[0], floor), b = _mm256_cmpgt_epi32(bits[1], floor);
  const __m256i c = _mm256_cmpgt_epi32(bits[2], floor), d = _mm256_cmpgt_epi32(bits[3], floor);
  const __m256i bytes = _mm256_packs_epi16(_mm256_packs_epi32(a, b), _mm256_packs_epi32(c, d));
  const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
  return static_cast<uint32_t>(_mm256_movemask_epi8(_mm256_permutevar8x32_epi32(bytes, order)));
}

template <Mode kMode>
AVX2 SPARSEWIRE_INLINE uint64_t mark(const Terms<float>& terms, const float* x, size_t at, const Cut<float>& cut) {
  __m256i low[kVectors], high[kVectors];
  const __m256i floors = _mm256_set1_epi32(cut.floor);
  keys<kMode>(terms, x, at, cut, low);
  const uint64_t word = mark32(low, floors);
  keys<kMode>(terms, x, at + 32, cut, high);
  return word | mark32(high, floors) << 32;
}

template <Mode kMode>
AVX2 SPARSEWIRE_INLINE uint64_t mark(const Terms<double>& terms, const double* x, size_t from, const Cut<double>& cut) {
  __m256i bits[kVectors];
  uint64_t word = 0;
  for (size_t at = 0; at < kWord; at += 4 * kVectors) {
    keys<kMode>(terms, x, from + at, cut, bits);
    for (size_t i = 0; i < kVectors; ++i) {
      const __m256i above = _mm256_cmpgt_epi64(bits[i], _mm256_set1_epi64x(cut.floor));
      word |= static_cast<uint64_t>(_mm256_movemask_pd(_mm256_castsi256_pd(above))) << (at + 4 * i);
    }
  }
  return word;
}

template <class T, Mode kMode>
AVX2 size_t scan(const Terms<T>& given, const T* x, size_t n, int32_t first, const Cut<T>& asked, int32_t* indices,
                 T* values) {
  const Terms<T> terms = kMode == Mode::list ? Terms<T>{} : given;  // copies: no store can change them
  const Cut<T> cut = asked;
  size_t size = 0, at = 0;
  for (; at + kWord <= n; at += kWord) {
    prefetch_word<kMode>(x + at);
    size += list_word<kMode>(mark<kMode>(terms, x, at, cut), terms.from(at), x + at, first + static_cast<int32_t>(at),
                             indices + size, values + size);
  }
  return size + list_tail<T, kMode>(terms, x, at, n, first, cut, indices + size, values + size);
}

template <class T>
AVX2 void combine(const Terms<T>& terms, const T* x, size_t n, T* out) {
  combine_all(terms, x, n, out);
}

template <class T>
AVX2 void advance(T* residual, T* velocity, T decay, T gain, const Motion<T>& motion, const T* x, size_t n) {
  advance_all(residual, velocity, decay, gain, motion, x, n);
}

template <class T>
AVX2 double squares(T* residual, const T* x, size_t n) {
  return add_squares(residual, x, n);
}

// For each set of lanes, which lane goes where to close the gaps.
struct Orders {
  uint8_t lanes[256][kVector] = {};
  constexpr Orders() {
    for (int set = 0; set < 256; ++set)
      for (int lane = 0, to = 0; lane < 8; ++lane)
        if (set >> lane & 1) lanes[set][to++] = static_cast<uint8_t>(lane);
  }
};
constexpr Orders kOrders;

AVX2 SPARSEWIRE_INLINE void put(__m256i values, unsigned set, void* out) {
  const __m128i lanes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(kOrders.lanes[set]));
  const __m256i closed = _mm256_permutevar8x32_epi32(values, _mm256_cvtepu8_epi32(lanes));
  _mm256_storeu_si256(static_cast<__m256i*>(out), closed);
}

AVX2 SPARSEWIRE_INLINE unsigned set_of(__m256i lanes) { return _mm256_movemask_ps(_mm256_castsi256_ps(lanes)); }

AVX2 uint64_t read(const char* data, size_t bytes) { return read_all<Vector>(data, bytes); }

}  // namespace

AVX2 size_t keep_avx2(const float* x, size_t n, int32_t low, int32_t high, float* out) {
  const __m256i mask = _mm256_set1_epi32(kMaxBits<float>);
  const __m256i lows = _mm256_set1_epi32(low), highs = _mm256_set1_epi32(high);
  size_t i = 0, size = 0;
  for (; i + kVector <= n; i += kVector) {
    const __m256i bits = _mm256_and_si256(load(x + i), mask);
    const __m256i outside = _mm256_or_si256(_mm256_cmpgt_epi32(lows, bits), _mm256_cmpgt_epi32(bits, highs));
    const unsigned set = set_of(outside) ^ 255;
    put(bits, set, out + size);
    size += __builtin_popcount(set);
  }
  for (; i < n; ++i) {
    const int32_t bits = magnitude(x[i]);
    std::memcpy(out + size, &bits, sizeof bits);
    size += (bits >= low) & (bits <= high);
  }
  return size;
}

AVX2 size_t filter_avx2(const int32_t* indices, const float* values, size_t n, int32_t base, int32_t floor,
                        int32_t* out_indices, float* out_values) {
  const __m256i mask = _mm256_set1_epi32(kMaxBits<float>);
  const __m256i floors = _mm256_set1_epi32(floor), bases = _mm256_set1_epi32(base);
  size_t i = 0, size = 0;
  for (; i + kVector <= n; i += kVector) {
    const __m256i value = load(values + i);
    const __m256i index = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(indices + i));
    const unsigned set = set_of(_mm256_cmpgt_epi32(_mm256_and_si256(value, mask), floors));
    put(_mm256_add_epi32(index, bases), set, out_indices + size);
    put(value, set, out_values + size);
    size += __builtin_popcount(set);
  }
  for (; i < n; ++i) {
    out_indices[size] = base + indices[i];
    out_values[size] = values[i];
    size += magnitude(values[i]) > floor;
  }
  return size;
}

const Scans avx2_scans = {
    {{scan<float, Mode::list>, scan<float, Mode::sum>, scan<float, Mode::scaled>},
     combine<float>,
     advance<float>,
     squares<float>},
    {{scan<double, Mode::list>, scan<double, Mode::sum>, scan<double, Mode::scaled>},
     combine<double>,
     advance<double>,
     squares<double>},
    read,
};

}  // namespace sparsewire
#endif
