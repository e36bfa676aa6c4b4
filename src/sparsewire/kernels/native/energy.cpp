// How many of the largest entries hold a wanted share of the energy: histograms of magnitudes, then one bin exactly.
#include <cmath>

#include "bitio.hpp"
#include "select_scan.hpp"

namespace sparsewire {
namespace {

constexpr size_t kLanes = 2;  // as adding to the same bin twice in a row would wait for the store
template <class T>
constexpr int kShift = sizeof(T) == 4 ? 16 : 45;  // 128 bins to the octave

struct Bin {
  double energy;
  int64_t count;
};

template <class T>
SPARSEWIRE_INLINE double energy_of(T value, double scale) {
  const double scaled = static_cast<double>(std::abs(value)) * scale;
  return scaled * scaled;
}

template <class T>
Bits<T> largest(const T* x, size_t n) {
  return fastest([=](auto) SPARSEWIRE_FLATTEN {
    Bits<T> top = 0;
    for (size_t i = 0; i < n; ++i) top = std::max(top, magnitude(x[i]));
    return top;
  });
}

// float64 squares would leave their range: numbers are scaled to below 1.
template <class T>
double scale_of(Bits<T> top) {
  if (sizeof(T) == 4) return 1.0;
  T value;
  std::memcpy(&value, &top, sizeof value);
  int exponent;
  std::frexp(static_cast<double>(value), &exponent);
  return std::ldexp(1.0, std::clamp(-exponent, -1000, 1000));
}

// The number of entries in the bin that may be left out besides all below it.
template <class T>
size_t refine(const T* x, size_t n, Bits<T> bin, double scale, double below, double allowed) {
  std::vector<double> inside;
  for (size_t i = 0; i < n; ++i)
    if (magnitude(x[i]) >> kShift<T> == bin) inside.push_back(energy_of(x[i], scale));
  std::sort(inside.begin(), inside.end());
  size_t out = 0;
  for (; out < inside.size() && (below += inside[out]) <= allowed;) ++out;
  return out;
}

template <class T>
int64_t count_energy(const T* x, size_t n, double share) {
  const Bits<T> top = largest(x, n);
  if (top >= kInfinity<T>) return -1;
  const double scale = scale_of<T>(top);
  const size_t bins = static_cast<size_t>(top >> kShift<T>) + 1;
  std::vector<Bin> tally(kLanes * bins, Bin{0, 0});
  for (size_t i = 0; i < n; ++i) {
    Bin& bin = tally[kLanes * static_cast<size_t>(magnitude(x[i]) >> kShift<T>) + i % kLanes];
    bin.energy += energy_of(x[i], scale);
    ++bin.count;
  }
  std::vector<double> below(bins + 1, 0.0);
  for (size_t b = 0; b < bins; ++b) below[b + 1] = below[b] + (tally[kLanes * b].energy + tally[kLanes * b + 1].energy);
  const double allowed = share * below[bins];
  size_t dropped = 0, b = 0;
  for (; b < bins && below[b + 1] <= allowed; ++b) dropped += tally[kLanes * b].count + tally[kLanes * b + 1].count;
  if (b < bins) dropped += refine(x, n, static_cast<Bits<T>>(b), scale, below[b], allowed);
  return static_cast<int64_t>(n - dropped);
}

template <class T>
int64_t energy_count(In<T> x, double share) {
  require(share >= 0 && share < 1, "a share of the energy lies in 0 … 1");
  return without_gil([&] { return x.size() ? count_energy(x.data(), x.size(), share) : 0; });
}

const Binder binder([](nb::module_& m) {
  m.def("energy_count", &energy_count<float>, nb::arg("x").noconvert(), nb::arg("share"));
  m.def("energy_count", &energy_count<double>, nb::arg("x").noconvert(), nb::arg("share"));
});

}  // namespace
}  // namespace sparsewire
