// What the kernels of the uniform quantizer share. A bin index is ±(1 + bin), 0 for the dead zone, or kNonFinite.
#pragma once

#include <cmath>
#include <limits>

#include "bitio.hpp"

namespace sparsewire {

constexpr int32_t kNonFinite = std::numeric_limits<int32_t>::min();
constexpr size_t kClasses = 608, kRows = kClasses + 2;  // classes, 32 to the octave; dead zone, non-finite
constexpr uint32_t kMostBins = (1 << 23) - 1;

// Log-linear classes of bins: one for each below 2^precision, then 2^precision to the octave.
SPARSEWIRE_INLINE unsigned bits_below(uint32_t bin, unsigned precision) {
  return 31 - __builtin_clz(bin | 1u << precision) - precision;
}

SPARSEWIRE_INLINE uint32_t log_linear(uint32_t bin, unsigned precision, unsigned below) {
  return (below << precision) + (bin >> below);
}

// Sums of so many counts × 2^23 or × 64 · 2^16 fit 64 bits.
constexpr int64_t kMostValues = int64_t{1} << 40;
constexpr size_t kMostSymbols = 96;

}  // namespace sparsewire
