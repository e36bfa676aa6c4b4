// Values to the bins of a uniform quantizer. Positions are integers, in units of 1/256 of the quantization step; the
// order of the float operations is part of the format.
#pragma once

#include "quantizer.hpp"

namespace sparsewire {

constexpr int32_t kLast = 1 << 30;
constexpr double kTop = kLast;

// --- smallest, largest, sum of squares ---------------------------------------------------------------------------

// Four neighbours at once: compilers do not find these vectors by themselves.
template <class T>
using Four [[gnu::vector_size(4 * sizeof(T))]] = T;

template <class T>
struct Scan {
  static constexpr size_t kLanes = 8, kHalves = 2;
  Four<T> least[kHalves], most[kHalves] = {};
  Four<double> sums[kHalves] = {};

  SPARSEWIRE_INLINE Scan() { least[0] = least[1] = Four<T>{} + std::numeric_limits<T>::infinity(); }

  SPARSEWIRE_INLINE void add(const T* eight) {
    const Four<T> zero = {}, infinity = zero + std::numeric_limits<T>::infinity();
    for (size_t half = 0; half < kHalves; ++half) {
      Four<T> value;
      std::memcpy(&value, eight + 4 * half, sizeof(value));
      const Four<T> raw = value < zero ? -value : value, magnitude = raw < infinity ? raw : zero;
      const Four<T> above = magnitude > zero ? magnitude : infinity;
      least[half] = above < least[half] ? above : least[half];
      most[half] = magnitude > most[half] ? magnitude : most[half];
      const Four<double> wide = __builtin_convertvector(magnitude, Four<double>);
      sums[half] += wide * wide;
    }
  }

  SPARSEWIRE_INLINE std::tuple<double, double, double> result() const {
    T smallest = std::numeric_limits<T>::infinity(), largest = 0;
    double energy = 0;
    for (size_t half = 0; half < kHalves; ++half)
      for (size_t lane = 0; lane < 4; ++lane) {
        smallest = std::min<T>(smallest, least[half][lane]);
        largest = std::max<T>(largest, most[half][lane]);
        energy += sums[half][lane];
      }
    return {largest > 0 ? static_cast<double>(smallest) : 0.0, static_cast<double>(largest), energy};
  }
};

template <class T>
SPARSEWIRE_INLINE std::tuple<double, double, double> scan(const T* values, size_t count) {
  constexpr size_t kLanes = Scan<T>::kLanes;
  Scan<T> scan;
  size_t i = 0;
  for (; i + kLanes <= count; i += kLanes) scan.add(values + i);
  T last[kLanes] = {};  // zeros change nothing
  std::copy(values + i, values + count, last);
  scan.add(last);
  return scan.result();
}

// --- values to bins ----------------------------------------------------------------------------------------------

// A class of bins: how many values above 0 and below, and the sum and the sum of squares of their units within the bin.
struct Tally {
  int64_t above, under, sum, squares;
};

SPARSEWIRE_INLINE uint32_t class_of(uint32_t bin) { return log_linear(bin, 5, bits_below(bin, 5)); }

// The same without branches, for vectors, which cannot count leading zeros: a float32's exponent is the octave.
SPARSEWIRE_INLINE int32_t class_by_float(int32_t bin) {
  const float number = static_cast<float>(bin | 32);
  int32_t bits;
  std::memcpy(&bits, &number, 4);
  const int32_t below = (bits >> 23) - 132;
  return (below << 5) + (bin >> below);
}

// −1 where the sign bit is set, else 0.
template <class T>
SPARSEWIRE_INLINE int32_t flip_of(T value) {
  std::conditional_t<sizeof(T) == 4, int32_t, int64_t> bits;
  std::memcpy(&bits, &value, sizeof(T));
  return static_cast<int32_t>(bits >> (8 * sizeof(T) - 1));
}

// Count, sum and sum of squares of up to 8192 numbers below 256 in one word each: one addition per value. Four tables
// take turns, as a value often falls where the one before it did. All are zero again after a flush.
struct Packed {
  static constexpr size_t kTables = 4, kMost = 8192 * kTables;
  uint64_t words[kTables][2 * kClasses] = {};
  uint32_t any = 0;  // all bins so far or-ed: an upper bound of each

  // place: 2 · class + negative
  SPARSEWIRE_INLINE void add(size_t table, uint32_t place, uint64_t within) {
    words[table][place] += (uint64_t{1} << 50) + within * (within + (uint64_t{1} << 29));
  }

  void flush(Tally* tallies) {
    const size_t used = 2 * class_of(any) + 2;
    for (auto& table : words)
      for (size_t place = 0; place < used; ++place) {
        const uint64_t word = std::exchange(table[place], 0);
        Tally& row = tallies[place / 2];
        (place % 2 ? row.under : row.above) += static_cast<int64_t>(word >> 50);
        row.sum += static_cast<int64_t>(word >> 29 & low_mask(21));
        row.squares += static_cast<int64_t>(word & low_mask(29));
      }
    any = 0;
  }
};

constexpr size_t kChunk = 512;

// Units of each value; −1 in the dead zone. Returns whether some are −1 or kLast: `inside` decides about those.
template <class T>
SPARSEWIRE_INLINE bool to_units(const T* values, size_t count, double start, double scale, int32_t* units) {
  const double least = start > 0 ? start : std::numeric_limits<double>::denorm_min();
  for (size_t i = 0; i < count; ++i) {
    const double magnitude = std::abs(static_cast<double>(values[i])), scaled = (magnitude - start) * scale;
    const double below = scaled < kTop ? scaled : kTop;
    units[i] = static_cast<int32_t>(magnitude < least ? -1.0 : below);
  }
  uint32_t most = 0;
  for (size_t i = 0; i < count; ++i) most = std::max(most, static_cast<uint32_t>(units[i]));
  return most >= static_cast<uint32_t>(kLast);
}

// Whether the value has a bin; if not, it is counted in the dead zone or as non-finite.
template <class T>
SPARSEWIRE_INLINE bool inside(T value, double start, double scale, Tally* tallies, int32_t* bin_index) {
  const double magnitude = std::abs(static_cast<double>(value));
  const bool finite = magnitude < std::numeric_limits<double>::infinity();
  if (finite && magnitude >= start && magnitude > 0) return true;
  const double scaled = finite ? magnitude * scale : 0;
  const int64_t place = static_cast<int64_t>(scaled < kTop ? scaled : kTop);
  Tally& row = tallies[finite ? kClasses : kClasses + 1];
  ++row.above;
  row.sum += place;
  row.squares += place * place;
  *bin_index = finite ? 0 : kNonFinite;
  return false;
}

// A chunk whose values all have bins, most of it in vectors; `places` hold 2^8 · place + units within the bin.
template <class T>
SPARSEWIRE_INLINE void plain_chunk(const T* values, const int32_t* units, size_t count, int32_t* bin_indices,
                                   Packed& packed) {
  uint32_t places[kChunk];
  int32_t any = 0;
  for (size_t i = 0; i < count; ++i) {
    const int32_t bin = units[i] >> 8, flip = flip_of(values[i]);
    any |= bin;
    bin_indices[i] = ((bin + 1) ^ flip) - flip;
    places[i] = static_cast<uint32_t>((2 * class_by_float(bin) - flip) << 8 | (units[i] & 255));
  }
  packed.any |= static_cast<uint32_t>(any);
  size_t i = 0;
  for (; i + Packed::kTables <= count; i += Packed::kTables)
    for (size_t table = 0; table < Packed::kTables; ++table)
      packed.add(table, places[i + table] >> 8, places[i + table] & 255);
  for (; i < count; ++i) packed.add(i % Packed::kTables, places[i] >> 8, places[i] & 255);
}

template <class T>
SPARSEWIRE_INLINE void mixed_chunk(const T* values, const int32_t* units, size_t count, double start, double scale,
                                   int32_t* bin_indices, Packed& packed, Tally* tallies) {
  for (size_t i = 0; i < count; ++i) {
    const uint32_t unit = static_cast<uint32_t>(units[i]);
    if (unit >= static_cast<uint32_t>(kLast) && !inside(values[i], start, scale, tallies, bin_indices + i)) continue;
    const uint32_t bin = unit >> 8, flip = static_cast<uint32_t>(flip_of(values[i]));
    packed.any |= bin;
    packed.add(i % Packed::kTables, 2 * class_of(bin) - flip, unit & 255);
    bin_indices[i] = static_cast<int32_t>(((bin + 1) ^ flip) - flip);
  }
}

// Bin indices and tallies of values for units of 1/scale from `start` on. The tallies start at zero; the last two are
// for the dead zone and for the non-finite values.
template <class T>
SPARSEWIRE_INLINE void assign_bins(const T* values, size_t count, double start, double scale, int32_t* bin_indices,
                                   Tally* tallies, Packed& packed) {
  int32_t units[kChunk];
  for (size_t from = 0; from < count; from += kChunk) {
    const size_t n = std::min(kChunk, count - from);
    if (to_units(values + from, n, start, scale, units))
      mixed_chunk(values + from, units, n, start, scale, bin_indices + from, packed, tallies);
    else
      plain_chunk(values + from, units, n, bin_indices + from, packed);
    if ((from + kChunk) % Packed::kMost == 0) packed.flush(tallies);
  }
  packed.flush(tallies);
}

}  // namespace sparsewire
