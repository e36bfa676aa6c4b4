// What the lattice kernels share.
#pragma once

#include <cmath>
#include <limits>

#include "bitio.hpp"

namespace sparsewire {

constexpr int32_t kNotFinite = std::numeric_limits<int32_t>::min();
constexpr size_t kBins = 608, kRows = kBins + 2;  // classes of cells with 32 to the octave, and what is outside
constexpr uint32_t kMostCells = (1 << 23) - 1;

// Log-linear classes: one each below 2^precision, then 2^precision to the octave.
SPARSEWIRE_INLINE unsigned bits_below(uint32_t cell, unsigned precision) {
  return 31 - __builtin_clz(cell | 1u << precision) - precision;
}

SPARSEWIRE_INLINE uint32_t log_linear(uint32_t cell, unsigned precision, unsigned below) {
  return (below << precision) + (cell >> below);
}

// What a grid or a ladder may be given: sums of such counts × 2^23 or × 64 · 2^16 fit 64 bits.
constexpr int64_t kMostValues = int64_t{1} << 40;
constexpr size_t kMostSymbols = 96;

}  // namespace sparsewire
