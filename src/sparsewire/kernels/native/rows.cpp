// Entries of several numbers: their Euclidean norms, in the order of operations that the reference has; entries of
// half spectra.
#include <algorithm>
#include <cmath>
#include <limits>

#include "bitio.hpp"
#include "select_scan.hpp"

namespace sparsewire {
namespace {

// A sum of squares that is far from the ends of float32, whose root is taken there; by its bits.
constexpr int64_t kPlainFrom = int64_t{1023 - 100} << 52, kPlainTo = int64_t{1023 + 100} << 52;

inline bool is_plain(double total) { return total == 0 || (total >= 0x1p-100 && total <= 0x1p100); }

template <class T>
double norm_of(const T* row, size_t width) {
  double peak = 0;
  bool nan = false;
  for (size_t i = 0; i < width; ++i) {
    nan |= std::isnan(row[i]);
    peak = std::max(peak, static_cast<double>(std::abs(row[i])));
  }
  if (nan) return std::numeric_limits<double>::quiet_NaN();
  if (std::isinf(peak)) return peak;
  int exponent = 0;
  if (sizeof(T) == 8) std::frexp(peak, &exponent);
  const int half = exponent >> 1;  // rounds down, as the reference does
  const double down = std::ldexp(1.0, -half), rest = std::ldexp(1.0, half - exponent);
  double total = 0;
  for (size_t i = 0; i < width; ++i) {
    const double scaled = static_cast<double>(std::abs(row[i])) * down * rest;
    total += scaled * scaled;
  }
  if (sizeof(T) == 4 && is_plain(total))
    return std::max<double>(std::sqrt(static_cast<float>(total)), peak);
  const double norm = std::sqrt(total) * std::ldexp(1.0, half) * std::ldexp(1.0, exponent - half);
  return std::min(std::max(norm, peak), static_cast<double>(std::numeric_limits<T>::max()));
}

// Pairs of float32 in steps that compilers turn into vectors; sums of squares that are not plain are done once more.
SPARSEWIRE_INLINE void norms_of_pairs(const float* x, size_t count, float* out) {
  constexpr size_t kChunk = 256;
  double total[kChunk];
  float peak[kChunk];
  for (size_t start = 0; start < count; start += kChunk, x += 2 * kChunk, out += kChunk) {
    const size_t n = std::min(kChunk, count - start);
    for (size_t i = 0; i < n; ++i) {
      const float a = std::abs(x[2 * i]), b = std::abs(x[2 * i + 1]);
      total[i] = static_cast<double>(a) * a + static_cast<double>(b) * b;
      peak[i] = a > b ? a : b;
    }
    for (size_t i = 0; i < n; ++i) {
      const float norm = std::sqrt(static_cast<float>(total[i]));
      out[i] = norm > peak[i] ? norm : peak[i];
    }
    int64_t odd = 0;
    for (size_t i = 0; i < n; ++i) {
      int64_t bits;
      std::memcpy(&bits, &total[i], sizeof bits);
      bits = bits ? bits : kPlainFrom;  // nothing is odd about 0
      odd |= (bits - kPlainFrom) | (kPlainTo - bits);
    }
    for (size_t i = 0; odd < 0 && i < n; ++i)
      if (!is_plain(total[i])) out[i] = static_cast<float>(norm_of(x + 2 * i, 2));
  }
}

// To memory that is not read again soon: past the caches, where they and the alignment allow it.
template <class T>
SPARSEWIRE_INLINE void put(T* to, const T* from, size_t count, bool apart) {
#if defined(__x86_64__)
  constexpr size_t kWord = sizeof(__m128i) / sizeof(T);
  if (apart && reinterpret_cast<uintptr_t>(to) % sizeof(__m128i) == 0 && count % kWord == 0) {
    for (size_t i = 0; i < count; i += kWord)
      _mm_stream_si128(reinterpret_cast<__m128i*>(to + i), _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i)));
    return;
  }
#endif
  std::memcpy(to, from, count * sizeof(T));
}

template <class T>
void norms_of_rows(const T* x, size_t count, size_t width, T* out) {
  if constexpr (sizeof(T) == 4)
    if (width == 2) return fastest([=](auto) SPARSEWIRE_FLATTEN { norms_of_pairs(x, count, out); });
  for (size_t i = 0; i < count; ++i) out[i] = static_cast<T>(norm_of(x + i * width, width));
}

// One row: its entries and norms, some at a time. Returns the bits of the largest norm.
template <class T>
SPARSEWIRE_INLINE Bits<T> entries_of_row(const T* spectrum, size_t pairs, T* out, T* norms, bool apart) {
  constexpr size_t kPairs = 256;
  const T root = static_cast<T>(1.4142135623730951);
  T numbers[2 * kPairs], found[kPairs];
  Bits<T> top = 0;
  for (size_t start = 0; start < pairs; start += kPairs) {
    const size_t n = std::min(kPairs, pairs - start);
    for (size_t i = 0; i < 2 * n; ++i) numbers[i] = spectrum[2 * start + i] * root;
    if (start == 0) numbers[0] = spectrum[0], numbers[1] = spectrum[2 * pairs];
    if constexpr (sizeof(T) == 4) {
      norms_of_pairs(numbers, n, found);
    } else {
      for (size_t i = 0; i < n; ++i) found[i] = norm_of(numbers + 2 * i, 2);
    }
    for (size_t i = 0; i < n; ++i) top = std::max(top, magnitude(found[i]));
    put(out + 2 * start, numbers, 2 * n, apart);
    put(norms + start, found, n, apart);
  }
  return top;
}

template <class T>
bool half_spectra(InOut<T> out, InOut<T> norms, In<T> spectra, int64_t rows, bool apart) {
  const size_t count = to_count(rows), pairs = norms.size() / std::max<size_t>(count, 1);
  const bool fits = count && spectra.size() == out.size() + 2 * count && out.size() == 2 * norms.size();
  if (!fits || norms.size() % count)
    throw std::invalid_argument(std::to_string(out.size()) + " numbers and " + std::to_string(norms.size()) +
                                " norms do not fit " + std::to_string(rows) + " half spectra of " +
                                std::to_string(spectra.size()));
  return without_gil([&] {
    return fastest([=, from = spectra.data(), to = out.data(), into = norms.data()](auto) SPARSEWIRE_FLATTEN {
      Bits<T> top = 0;
      for (size_t row = 0; row < count; ++row)
        top = std::max(top, entries_of_row(from + row * (2 * pairs + 2), pairs, to + row * 2 * pairs,
                                           into + row * pairs, apart));
#if defined(__x86_64__)
      _mm_sfence();
#endif
      return top < kInfinity<T>;
    });
  });
}

template <class T>
void row_norms(InOut<T> out, const In<T>& x, int64_t width) {
  if (width < 1 || x.size() % static_cast<size_t>(width))
    throw std::invalid_argument(std::to_string(x.size()) + " numbers are not rows of " + std::to_string(width));
  require(out.size() == x.size() / width, "the output does not fit the rows");
  without_gil([&] { norms_of_rows(x.data(), out.size(), static_cast<size_t>(width), out.data()); });
}

template <class T>
void bind(nb::module_& m) {
  using nb::arg;
  m.def("row_norms", &row_norms<T>, arg("out").noconvert(), arg("x").noconvert(), arg("width"));
  m.def("half_spectra", &half_spectra<T>, arg("out").noconvert(), arg("norms").noconvert(), arg("spectra").noconvert(),
        arg("rows"), arg("apart") = false);
}

const Binder binder([](nb::module_& m) {
  bind<float>(m);
  bind<double>(m);
});

}  // namespace
}  // namespace sparsewire
