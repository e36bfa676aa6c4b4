// Small numbers that change little, as zigzag-coded differences in unary.
#pragma once

#include <cstring>

#include "common.hpp"

namespace sparsewire {

constexpr int kMostDelta = 63;

inline unsigned zigzag(int change) { return change < 0 ? -2 * change - 1 : 2 * change; }
inline int unzigzag(uint64_t code) { return code & 1 ? -static_cast<int>((code + 1) / 2) : static_cast<int>(code / 2); }

inline Out<uint8_t> write_deltas(const uint8_t* numbers, size_t count) {
  uint64_t bits = 0;
  int before = 0;
  for (size_t i = 0; i < count; before = numbers[i++]) bits += zigzag(numbers[i] - before) + 1;
  Buffer<uint8_t> out((bits + 7) / 8);
  std::memset(out.data(), 0, out.size());
  uint64_t at = 0;
  before = 0;
  for (size_t i = 0; i < count; before = numbers[i++]) {
    at += zigzag(numbers[i] - before) + 1;
    out.data()[(at - 1) / 8] |= 1u << ((at - 1) % 8);
  }
  return out.release();
}

// Walks the ones of the stream, eight bytes at a time.
inline void read_deltas(const uint8_t* data, size_t size, uint8_t* out, size_t count) {
  size_t found = 0;
  uint64_t next = 0;  // where the next code starts
  int number = 0;
  for (size_t at = 0; at < size; at += 8) {
    uint64_t word = 0;
    std::memcpy(&word, data + at, size - at < 8 ? size - at : 8);
    for (; word; word &= word - 1) {
      const uint64_t end = 8 * at + __builtin_ctzll(word);
      require(found < count && end - next <= 2 * kMostDelta, "the changes do not fit their count");
      number += unzigzag(end - next);
      require(number >= 0 && number <= kMostDelta, "a number is not in 0…63");
      out[found++] = static_cast<uint8_t>(number);
      next = end + 1;
    }
  }
  require(found == count && size == (next + 7) / 8, "the changes do not fit their count");
}

}  // namespace sparsewire
