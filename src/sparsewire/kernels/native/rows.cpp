// Entries of several numbers: their Euclidean norms, in the order of operations that the reference has.
#include <algorithm>
#include <cmath>
#include <limits>

#include "common.hpp"

namespace sparsewire {
namespace {

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
  const double norm = std::sqrt(total) * std::ldexp(1.0, half) * std::ldexp(1.0, exponent - half);
  return std::min(std::max(norm, peak), static_cast<double>(std::numeric_limits<T>::max()));
}

template <class T>
nb::object row_norms(const In<T>& x, int64_t width) {
  if (width < 1 || x.size() % static_cast<size_t>(width))
    throw std::invalid_argument(std::to_string(x.size()) + " numbers are not rows of " + std::to_string(width));
  Buffer<T> out(x.size() / width);
  {
    nb::gil_scoped_release release;
    for (size_t i = 0; i < out.size(); ++i) out.data()[i] = static_cast<T>(norm_of(x.data() + i * width, width));
  }
  return nb::cast(out.release());
}

const Binder binder([](nb::module_& m) {
  m.def("row_norms", &row_norms<float>, nb::arg("x").noconvert(), nb::arg("width"));
  m.def("row_norms", &row_norms<double>, nb::arg("x").noconvert(), nb::arg("width"));
});

}  // namespace
}  // namespace sparsewire
