// descending: values of each sign from the largest magnitude down, and their positions.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>
#include <vector>

#include "bitio.hpp"

namespace sparsewire {
namespace {

// A key that ascends in the wanted order: positive before negative, large magnitudes before small ones.
template <class Bits, class Float>
Bits key_of(Float value) {
  Bits bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits ^ static_cast<Bits>(~Bits{0} >> 1);
}

// A stable radix sort by the upper half, in as few digits as its range needs. The result may be in `spare`.
uint64_t* sort_pairs(uint64_t* pairs, uint64_t* spare, size_t size) {
  constexpr unsigned kMostDigit = 12;
  uint64_t least = ~uint64_t{0}, most = 0;
  for (size_t i = 0; i < size; ++i) {
    least = std::min(least, pairs[i] >> 32);
    most = std::max(most, pairs[i] >> 32);
  }
  const unsigned width = size ? bit_length(most - least) : 0, passes = (width + kMostDigit - 1) / kMostDigit;
  const unsigned digit = passes ? (width + passes - 1) / passes : 0;
  std::vector<uint32_t> starts((size_t{1} << digit) + 1);
  for (unsigned pass = 0; pass < passes; ++pass) {
    const auto bucket = [&](uint64_t pair) { return ((pair >> 32) - least) >> (pass * digit) & low_mask(digit); };
    std::fill(starts.begin(), starts.end(), 0);
    for (size_t i = 0; i < size; ++i) ++starts[bucket(pairs[i]) + 1];
    for (size_t i = 1; i < starts.size(); ++i) starts[i] += starts[i - 1];
    for (size_t i = 0; i < size; ++i) spare[starts[bucket(pairs[i])]++] = pairs[i];
    std::swap(pairs, spare);
  }
  return pairs;
}

void take_apart(const uint64_t* pairs, size_t size, float* magnitudes, int64_t* places) {
  for (size_t i = 0; i < size; ++i) {
    const uint32_t bits = ~static_cast<uint32_t>(pairs[i] >> 32) & 0x7FFFFFFF;
    std::memcpy(magnitudes + i, &bits, sizeof bits);
    places[i] = static_cast<int64_t>(pairs[i] & 0xFFFFFFFF);
  }
}

// Each sign is sorted alone: both together have a far wider range.
void order(const float* values, size_t size, float* magnitudes, int64_t* places) {
  const size_t above = std::count_if(values, values + size, [](float value) { return !std::signbit(value); });
  Buffer<uint64_t> pairs(size), spare(size);
  uint64_t* at[2] = {pairs.data(), pairs.data() + above};
  for (size_t i = 0; i < size; ++i)
    *at[std::signbit(values[i])]++ = uint64_t{key_of<uint32_t>(values[i])} << 32 | i;
  take_apart(sort_pairs(pairs.data(), spare.data(), above), above, magnitudes, places);
  take_apart(sort_pairs(pairs.data() + above, spare.data() + above, size - above), size - above, magnitudes + above,
             places + above);
}

void order(const double* values, size_t size, double* magnitudes, int64_t* places) {
  std::vector<std::pair<uint64_t, uint32_t>> pairs(size);
  for (size_t i = 0; i < size; ++i) pairs[i] = {key_of<uint64_t>(values[i]), static_cast<uint32_t>(i)};
  std::sort(pairs.begin(), pairs.end());
  for (size_t i = 0; i < size; ++i) {
    places[i] = pairs[i].second;
    magnitudes[i] = std::fabs(values[places[i]]);
  }
}

template <class Float>
nb::tuple descending(In<Float> values) {
  const size_t size = values.size();
  require(size < uint64_t{1} << 32, "there are too many values to sort");
  Buffer<Float> magnitudes(size);
  Buffer<int64_t> places(size);
  without_gil([&, from = values.data()] { order(from, size, magnitudes.data(), places.data()); });
  return nb::make_tuple(magnitudes.release(), places.release());
}

const Binder binder([](nb::module_& m) {
  m.def("descending", &descending<float>, nb::arg("values").noconvert());
  m.def("descending", &descending<double>, nb::arg("values").noconvert());
});

}  // namespace
}  // namespace sparsewire
