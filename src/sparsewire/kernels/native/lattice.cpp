// A grid of magnitudes with cells of one size. Positions are integers, in 1/256 of a cell; the order of the float
// operations is part of the format.
#include "lattice.hpp"

namespace sparsewire {
namespace {

constexpr size_t kBins = 608, kRows = kBins + 2;
constexpr int32_t kLast = 1 << 30;
constexpr double kTop = kLast;

// --- smallest, largest, sum of squares ---------------------------------------------------------------------------

template <class T>
SPARSEWIRE_INLINE std::tuple<double, double, double> scan(const T* values, size_t count) {
  constexpr size_t kLanes = 8;
  const T infinity = std::numeric_limits<T>::infinity();
  T least[kLanes], most[kLanes];
  double sums[kLanes] = {};
  std::fill_n(least, kLanes, infinity);
  std::fill_n(most, kLanes, T{0});
  const auto one = [&](T value, size_t lane) SPARSEWIRE_FLATTEN {
    const T raw = std::abs(value), magnitude = raw < infinity ? raw : T{0};
    const T above = magnitude > 0 ? magnitude : infinity;
    least[lane] = above < least[lane] ? above : least[lane];
    most[lane] = magnitude > most[lane] ? magnitude : most[lane];
    sums[lane] += static_cast<double>(magnitude) * static_cast<double>(magnitude);
  };
  size_t i = 0;
  for (; i + kLanes <= count; i += kLanes)
    for (size_t lane = 0; lane < kLanes; ++lane) one(values[i + lane], lane);
  for (; i < count; ++i) one(values[i], i % kLanes);
  double energy = 0;
  for (double sum : sums) energy += sum;
  const T smallest = *std::min_element(least, least + kLanes), largest = *std::max_element(most, most + kLanes);
  return {largest > 0 ? static_cast<double>(smallest) : 0.0, static_cast<double>(largest), energy};
}

template <class T>
std::tuple<double, double, double> lattice_scan(In<T> values) {
  return without_gil([&] {
    return fastest(
        [from = values.data(), count = values.size()](auto) SPARSEWIRE_FLATTEN { return scan(from, count); });
  });
}

// --- values to cells ---------------------------------------------------------------------------------------------

struct Tally {
  int64_t above, under, sum, squares;
};

// Count, sum and sum of squares of up to 8192 numbers below 256 in one word each: one addition per value. Four tables
// take turns, as a value often falls where the one before it did.
struct Packed {
  static constexpr size_t kTables = 4, kMost = 8192 * kTables;
  uint64_t words[kTables][kBins][2] = {};

  SPARSEWIRE_INLINE void add(size_t table, uint32_t bin, bool negative, uint64_t within) {
    words[table][bin][negative] += uint64_t{1} << 50 | within << 29 | within * within;
  }

  void flush(Tally* tallies) {
    for (auto& table : words)
      for (size_t bin = 0; bin < kBins; ++bin)
        for (size_t negative = 0; negative < 2; ++negative) {
          const uint64_t word = std::exchange(table[bin][negative], 0);
          (negative ? tallies[bin].under : tallies[bin].above) += static_cast<int64_t>(word >> 50);
          tallies[bin].sum += static_cast<int64_t>(word >> 29 & low_mask(21));
          tallies[bin].squares += static_cast<int64_t>(word & low_mask(29));
        }
  }
};

// Units of each value; at most 0 or at least kTop where a closer look is needed.
template <class T>
SPARSEWIRE_INLINE void to_units(const T* values, size_t count, double start, double scale, int32_t* units) {
  for (size_t i = 0; i < count; ++i) {
    const double scaled = (std::abs(static_cast<double>(values[i])) - start) * scale;
    const double below = scaled < kTop ? scaled : kTop, above = below > -1 ? below : -1;
    units[i] = static_cast<int32_t>(above);
  }
}

// Whether the value has a place on the grid; if not, it is counted outside.
template <class T>
SPARSEWIRE_INLINE bool inside(T value, double start, double scale, Tally* tallies, int32_t* code) {
  const double magnitude = std::abs(static_cast<double>(value));
  const bool finite = magnitude < std::numeric_limits<double>::infinity();
  if (finite && magnitude >= start && magnitude > 0) return true;
  const double scaled = finite ? magnitude * scale : 0;
  const int64_t place = static_cast<int64_t>(scaled < kTop ? scaled : kTop);
  Tally& row = tallies[finite ? kBins : kBins + 1];
  ++row.above;
  row.sum += place;
  row.squares += place * place;
  *code = finite ? 0 : kNotFinite;
  return false;
}

template <class T>
SPARSEWIRE_INLINE void cells(const T* values, size_t count, double start, double scale, int32_t* codes,
                             Tally* tallies) {
  constexpr size_t kChunk = 512;
  int32_t units[kChunk];
  Packed packed;
  for (size_t from = 0; from < count; from += kChunk) {
    const size_t n = std::min(kChunk, count - from);
    to_units(values + from, n, start, scale, units);
    for (size_t i = 0; i < n; ++i) {
      const int32_t unit = units[i];
      const T value = values[from + i];
      if (static_cast<uint32_t>(unit) - 1 >= kLast - 1u)
        if (!inside(value, start, scale, tallies, codes + from + i)) continue;
      const uint32_t cell = static_cast<uint32_t>(unit) >> 8;
      const bool negative = std::signbit(value);
      packed.add(i % Packed::kTables, log_linear(cell, 5, bits_below(cell, 5)), negative, unit & 255);
      const int32_t code = static_cast<int32_t>(cell) + 1, flip = -static_cast<int32_t>(negative);
      codes[from + i] = (code ^ flip) - flip;
    }
    if ((from + kChunk) % Packed::kMost == 0) packed.flush(tallies);
  }
  packed.flush(tallies);
}

template <class T>
auto lattice_cells(In<T> values, double start, double scale) {
  const double infinity = std::numeric_limits<double>::infinity();
  require(start >= 0 && start < infinity && scale > 0 && scale < infinity,
          "a lattice needs a start ≥ 0 and a scale > 0");
  Buffer<int32_t> codes(values.size());
  Buffer<int64_t> tallies(4 * kRows);
  std::fill_n(tallies.data(), 4 * kRows, 0);
  without_gil([&] {
    fastest([=, from = values.data(), count = values.size(), to = codes.data(),
             rows = reinterpret_cast<Tally*>(tallies.data())](auto)
                SPARSEWIRE_FLATTEN { cells(from, count, start, scale, to, rows); });
  });
  auto first = codes.release();
  return std::make_pair(std::move(first), tallies.release());
}

template <class T>
void bind(nb::module_& m) {
  m.def("lattice_scan", &lattice_scan<T>, nb::arg("values").noconvert());
  m.def("lattice_cells", &lattice_cells<T>, nb::arg("values").noconvert(), nb::arg("start"), nb::arg("scale"));
}

const Binder binder([](nb::module_& m) {
  bind<float>(m);
  bind<double>(m);
});

}  // namespace
}  // namespace sparsewire
