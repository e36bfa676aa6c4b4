// Entries of several numbers: their Euclidean norms, in the order of operations that the reference has.
#include <algorithm>
#include <cmath>
#include <limits>

#include "bitio.hpp"

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

template <class T>
void norms_of_rows(const T* x, size_t count, size_t width, T* out) {
  if constexpr (sizeof(T) == 4)
    if (width == 2) return fastest([=](auto) SPARSEWIRE_FLATTEN { norms_of_pairs(x, count, out); });
  for (size_t i = 0; i < count; ++i) out[i] = static_cast<T>(norm_of(x + i * width, width));
}

template <class T>
void row_norms(InOut<T> out, const In<T>& x, int64_t width) {
  if (width < 1 || x.size() % static_cast<size_t>(width))
    throw std::invalid_argument(std::to_string(x.size()) + " numbers are not rows of " + std::to_string(width));
  require(out.size() == x.size() / width, "the output does not fit the rows");
  without_gil([&] { norms_of_rows(x.data(), out.size(), static_cast<size_t>(width), out.data()); });
}

const Binder binder([](nb::module_& m) {
  m.def("row_norms", &row_norms<float>, nb::arg("out").noconvert(), nb::arg("x").noconvert(), nb::arg("width"));
  m.def("row_norms", &row_norms<double>, nb::arg("out").noconvert(), nb::arg("x").noconvert(), nb::arg("width"));
});

}  // namespace
}  // namespace sparsewire
