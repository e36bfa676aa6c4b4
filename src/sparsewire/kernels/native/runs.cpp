// Index arrays as the gaps between entries, and as alternating runs of zeros and ones.
#include "bitio.hpp"

namespace sparsewire {
namespace {

template <class T>
using Unsigned = std::make_unsigned_t<T>;

template <class T>
Out<Unsigned<T>> gaps(In<T> indices) {
  using U = Unsigned<T>;
  Buffer<U> out(indices.size());
  without_gil([&] {
    fastest([index = indices.data(), count = indices.size(), to = out.data()](auto) SPARSEWIRE_FLATTEN {
      if (count) to[0] = static_cast<U>(index[0]);
      for (size_t i = 1; i < count; ++i) to[i] = static_cast<U>(index[i]) - static_cast<U>(index[i - 1]) - 1;
    });
  });
  return out.release();
}

#if defined(__x86_64__)
// `next` is the lowest index that the first may have. Returns how many were done: all but fewer than eight.
SPARSEWIRE_AVX2 inline size_t sum_eights(const uint32_t* gap, size_t count, uint32_t next, int32_t* out) {
  const __m256i one = _mm256_set1_epi32(1), last = _mm256_set1_epi32(7);
  __m256i before = _mm256_set1_epi32(static_cast<int>(next - 1));
  size_t i = 0;
  for (; i + 8 <= count; i += 8) {
    __m256i x = _mm256_add_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(gap + i)), one);
    x = _mm256_add_epi32(x, _mm256_slli_si256(x, 4));
    x = _mm256_add_epi32(x, _mm256_slli_si256(x, 8));
    const __m256i lower = _mm256_permute2x128_si256(x, x, 0x08);  // the lower half on top, zero below
    x = _mm256_add_epi32(x, _mm256_shuffle_epi32(lower, 0xFF));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + i), _mm256_add_epi32(x, before));
    before = _mm256_add_epi32(before, _mm256_permutevar8x32_epi32(x, last));
  }
  return i;
}
#endif

// Takes the gaps and their entries off the elements that are left, or returns false where they are too few.
template <class G>
SPARSEWIRE_INLINE bool take(const G* gap, size_t count, uint64_t& left) {
  if constexpr (sizeof(G) == 4) {
    uint64_t sum = count;
    for (size_t i = 0; i < count; ++i) sum += gap[i];
    if (sum > left) return false;
    left -= sum;
  } else {
    for (size_t i = 0; i < count; ++i) {
      if (gap[i] >= left) return false;
      left -= gap[i] + 1;
    }
  }
  return true;
}

// Whether the gaps stay below numel.
template <bool avx2, class T, class G>
SPARSEWIRE_INLINE bool accumulate_gaps(const G* gap, size_t count, uint64_t numel, T* out) {
  constexpr size_t kChunk = 4096;  // whose sum of 32-bit gaps fits 64 bits
  uint64_t next = 0, left = numel;
  for (size_t start = 0; start < count; start += kChunk) {
    size_t i = start;
    const size_t end = start + std::min(kChunk, count - start);
    if (!take(gap + start, end - start, left)) return false;
#if defined(__x86_64__)
    if constexpr (avx2 && sizeof(T) == 4 && sizeof(G) == 4) {
      i += sum_eights(gap + start, end - start, static_cast<uint32_t>(next), out + start);
      if (i > start) next = static_cast<uint64_t>(out[i - 1]) + 1;
    }
#endif
    for (; i < end; ++i) {
      next += uint64_t{gap[i]} + 1;
      out[i] = static_cast<T>(next - 1);
    }
  }
  return true;
}

template <class T, class G>
nb::object from_gaps_as(In<G> gaps, uint64_t numel) {
  Buffer<T> out(gaps.size());
  const bool good = without_gil([&] {
    return fastest([=, gap = gaps.data(), count = gaps.size(), to = out.data()](auto avx2) SPARSEWIRE_FLATTEN {
      return accumulate_gaps<decltype(avx2)::value>(gap, count, numel, to);
    });
  });
  require(good, "the gaps leave the tensor");
  return nb::cast(out.release());
}

template <class G>
nb::object from_gaps(In<G> gaps, int64_t numel_) {
  const uint64_t numel = to_numel(numel_);
  return wide_index(numel) ? from_gaps_as<int64_t>(gaps, numel) : from_gaps_as<int32_t>(gaps, numel);
}

template <class T>
SPARSEWIRE_INLINE size_t count_runs(const T* index, size_t count) {
  size_t runs = count != 0;
  for (size_t i = 1; i < count; ++i) runs += Unsigned<T>(index[i]) - Unsigned<T>(index[i - 1]) != 1;
  return runs;
}

template <class T>
void split_runs(const T* index, size_t count, Unsigned<T>* zeros, Unsigned<T>* ones) {
  using U = Unsigned<T>;
  U previous = static_cast<U>(-1);
  for (size_t i = 0, run = size_t(-1), start = 0; i < count; ++i) {
    const U gap = static_cast<U>(index[i]) - previous - 1;
    if (gap != 0 || i == 0) {
      zeros[++run] = gap;
      start = i;
    }
    ones[run] = static_cast<U>(i + 1 - start);
    previous = static_cast<U>(index[i]);
  }
}

template <class T>
auto run_lengths(In<T> indices) {
  const T* index = indices.data();
  const size_t count = indices.size();
  const size_t runs = without_gil([&] {
    return fastest([=](auto) SPARSEWIRE_FLATTEN { return count_runs(index, count); });
  });
  Buffer<Unsigned<T>> zeros(runs), ones(runs);
  without_gil([&] { split_runs(index, count, zeros.data(), ones.data()); });
  auto first = zeros.release();
  return std::make_pair(std::move(first), ones.release());
}

template <class U>
bool runs_fit(const U* zeros, const U* ones, size_t runs, uint64_t numel, uint64_t count) {
  uint64_t total = 0, position = 0;
  for (size_t i = 0; i < runs; ++i) {
    if (ones[i] == 0 || (i && zeros[i] == 0)) return false;
    if (zeros[i] > numel - position) return false;
    position += zeros[i];
    if (ones[i] > numel - position || ones[i] > count - total) return false;
    position += ones[i];
    total += ones[i];
  }
  return total == count;
}

template <class T, class U>
nb::object fill_runs(In<U> zeros, In<U> ones, size_t count) {
  Buffer<T> out(count);
  without_gil([&] {
    T* to = out.data();
    uint64_t position = 0;
    for (size_t i = 0; i < zeros.size(); ++i) {
      position += zeros.data()[i];
      *to++ = static_cast<T>(position++);  // most runs have one entry: no loop for them
      for (uint64_t left = ones.data()[i]; left > 1; --left) *to++ = static_cast<T>(position++);
    }
  });
  return nb::cast(out.release());
}

template <class U>
nb::object from_run_lengths(In<U> zeros, In<U> ones, int64_t numel_, int64_t count_) {
  require(zeros.size() == ones.size(), "runs come in pairs");
  const uint64_t numel = to_numel(numel_);
  const size_t count = to_count(count_);
  require(without_gil([&] { return runs_fit(zeros.data(), ones.data(), zeros.size(), numel, count); }),
          "a run is empty or leaves the tensor, or the runs do not hold as many entries as announced");
  return wide_index(numel) ? fill_runs<int64_t>(zeros, ones, count) : fill_runs<int32_t>(zeros, ones, count);
}

template <class T>
void bind(nb::module_& m) {
  using U = Unsigned<T>;
  m.def("gaps", &gaps<T>, nb::arg("indices").noconvert());
  m.def("from_gaps", &from_gaps<U>, nb::arg("gaps").noconvert(), nb::arg("numel"));
  m.def("run_lengths", &run_lengths<T>, nb::arg("indices").noconvert());
  m.def("from_run_lengths", &from_run_lengths<U>, nb::arg("zeros").noconvert(), nb::arg("ones").noconvert(),
        nb::arg("numel"), nb::arg("count"));
}

const Binder binder([](nb::module_& m) {
  bind<int32_t>(m);
  bind<int64_t>(m);
});

}  // namespace
}  // namespace sparsewire
