// The dense pass of selection in AVX-512.
#if defined(__x86_64__)
#include <immintrin.h>

#include "select_scan.hpp"

#define AVX512 __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,bmi,bmi2,popcnt,lzcnt")))

namespace sparsewire {
namespace {

typedef uint64_t Vector __attribute__((vector_size(64)));

template <class T>
struct Lanes {
  typedef T type __attribute__((vector_size(64)));
};

AVX512 SPARSEWIRE_INLINE uint64_t above(__m512i values, const Cut<float>& cut) {
  const __m512i bits = _mm512_and_si512(values, _mm512_set1_epi32(cut.mask));
  const __m512i keys = _mm512_xor_si512(bits, _mm512_set1_epi32(cut.flip));
  return _mm512_cmpgt_epi32_mask(keys, _mm512_set1_epi32(cut.floor));
}
AVX512 SPARSEWIRE_INLINE uint64_t above(__m512i values, const Cut<double>& cut) {
  const __m512i bits = _mm512_and_si512(values, _mm512_set1_epi64(cut.mask));
  const __m512i keys = _mm512_xor_si512(bits, _mm512_set1_epi64(cut.flip));
  return _mm512_cmpgt_epi64_mask(keys, _mm512_set1_epi64(cut.floor));
}

template <Mode kMode, class T>
AVX512 SPARSEWIRE_INLINE uint64_t mark(const Terms<T>& terms, const T* x, size_t at, const Cut<T>& cut) {
  constexpr size_t kLanes = 64 / sizeof(T);
  uint64_t word = 0;
  for (size_t i = 0; i < kWord; i += kLanes) {
    typename Lanes<T>::type values;
    __m512i bits;
    load_sum<kMode>(terms, x, at + i, values);
    std::memcpy(&bits, &values, sizeof values);
    word |= above(bits, cut) << i;
  }
  return word;
}

template <class T, Mode kMode>
AVX512 size_t scan(const Terms<T>& given, const T* x, size_t n, int32_t first, const Cut<T>& asked,
                   int32_t* indices, T* values) {
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
AVX512 void combine(const Terms<T>& terms, const T* x, size_t n, T* out) {
  combine_all(terms, x, n, out);
}

template <class T>
AVX512 void advance(T* residual, T* velocity, T decay, T gain, const Motion<T>& motion, const T* x, size_t n) {
  advance_all(residual, velocity, decay, gain, motion, x, n);
}

template <class T>
AVX512 double squares(T* residual, const T* x, size_t n) {
  return add_squares(residual, x, n);
}

AVX512 uint64_t read(const char* data, size_t bytes) { return read_all<Vector>(data, bytes); }

}  // namespace

const Scans avx512_scans = {
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
