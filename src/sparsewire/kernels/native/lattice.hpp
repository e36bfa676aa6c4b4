// What the two halves of the lattice kernels share.
#pragma once

#include <cmath>
#include <limits>

#include "bitio.hpp"

namespace sparsewire {

constexpr int32_t kNotFinite = std::numeric_limits<int32_t>::min();
constexpr uint32_t kMostCells = (1 << 23) - 1;

// Log-linear classes: one each below 2^precision, then 2^precision to the octave.
SPARSEWIRE_INLINE unsigned bits_below(uint32_t cell, unsigned precision) {
  return 31 - __builtin_clz(cell | 1u << precision) - precision;
}

SPARSEWIRE_INLINE uint32_t log_linear(uint32_t cell, unsigned precision, unsigned below) {
  return (below << precision) + (cell >> below);
}

}  // namespace sparsewire
