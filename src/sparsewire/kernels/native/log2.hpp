// A binary logarithm in integers, so that every machine finds the same costs.
#pragma once

#include "bitio.hpp"

namespace sparsewire {

// 65536 · log2(1 + i/256), rounded: squaring a number 17 times gives 17 binary digits of its logarithm.
constexpr std::array<int64_t, 257> logarithms() {
  std::array<int64_t, 257> table{};
  for (uint64_t i = 0; i < 256; ++i) {
    uint64_t number = (256 + i) << 23, digits = 0;
    for (int digit = 0; digit < 17; ++digit) {
      number = number * number >> 31;
      digits = 2 * digits + (number >> 32);
      number >>= number >> 32;
    }
    table[i] = static_cast<int64_t>((digits + 1) / 2);
  }
  table[256] = 65536;
  return table;
}

inline constexpr auto kLogarithms = logarithms();

// 65536 · log2: octave, 8 bits that choose a line, 16 bits on it.
inline int64_t log2_of(int64_t number) {
  const int octave = static_cast<int>(bit_length(static_cast<uint64_t>(number))) - 1;
  const int64_t scaled = octave < 24 ? number << (24 - octave) : number >> (octave - 24);
  const int64_t line = scaled >> 16 & 255, along = scaled & 65535;
  const int64_t rise = (kLogarithms[line + 1] - kLogarithms[line]) * along >> 16;
  return (int64_t{octave} << 16) + kLogarithms[line] + rise;
}

}  // namespace sparsewire
