// The counter-based hash (splitmix64) and a keyed bijection of 0 … numel − 1 made of it.
#pragma once

#include "bitio.hpp"

namespace sparsewire {

constexpr uint64_t kGolden = 0x9E3779B97F4A7C15;

// Without the last step, which leaves the upper 31 bits alone.
SPARSEWIRE_INLINE uint64_t mix_upper(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9;
  return (x ^ (x >> 27)) * 0x94D049BB133111EB;
}

SPARSEWIRE_INLINE uint64_t mix(uint64_t x) {
  x = mix_upper(x);
  return x ^ (x >> 31);
}

// The key of each of the four Feistel rounds, on 2 · half bits.
struct Feistel {
  uint64_t keys[4];
  unsigned half;

  Feistel(uint64_t numel, uint64_t key) : half(numel ? std::max(1u, (bit_length(numel - 1) + 1) / 2) : 1) {
    for (uint64_t i = 0; i < 4; ++i) keys[i] = mix(key + (i + 1) * kGolden);
  }
};

SPARSEWIRE_INLINE void feistel_round(const uint64_t* from, size_t count, uint64_t key, uint64_t mask, uint64_t* to) {
  for (size_t i = 0; i < count; ++i) to[i] ^= mix(from[i] + key) & mask;
}

// Ids that walk together: their number of steps is random, and a branch for each id would be mispredicted.
struct Batch {
  static constexpr size_t kSize = 512;
  uint64_t left[kSize], right[kSize];
  uint32_t owner[kSize];
  size_t count;

  SPARSEWIRE_INLINE void load(const uint64_t* ids, size_t size, unsigned half) {
    count = size;
    for (size_t i = 0; i < size; ++i) {
      left[i] = ids[i] >> half;
      right[i] = ids[i] & low_mask(half);
      owner[i] = static_cast<uint32_t>(i);
    }
  }

  // Two rounds swap the halves twice, which leaves them in place; each undoes itself.
  template <bool kInverse>
  SPARSEWIRE_INLINE void step(const Feistel& f) {
    if constexpr (kInverse) return step_back(f);
    for (int i = 0; i < 4; i += 2) {
      feistel_round(right, count, f.keys[i], low_mask(f.half), left);
      feistel_round(left, count, f.keys[i + 1], low_mask(f.half), right);
    }
  }

  SPARSEWIRE_INLINE void step_back(const Feistel& f) {
    for (int i = 4; i > 0; i -= 2) {
      feistel_round(left, count, f.keys[i - 1], low_mask(f.half), right);
      feistel_round(right, count, f.keys[i - 2], low_mask(f.half), left);
    }
  }

  // Stores every id and keeps those that have to go on.
  SPARSEWIRE_INLINE void store(uint64_t* out, uint64_t numel, unsigned half) {
    size_t kept = 0;
    for (size_t i = 0; i < count; ++i) {
      const uint64_t l = left[i], r = right[i], id = l << half | r;
      out[owner[i]] = id;
      left[kept] = l;
      right[kept] = r;
      owner[kept] = owner[i];
      kept += id >= numel;
    }
    count = kept;
  }
};

// `out` may be `ids`.
template <bool kInverse = false>
SPARSEWIRE_INLINE void walk(const uint64_t* ids, size_t count, uint64_t numel, const Feistel f, uint64_t* out) {
  Batch batch;
  for (size_t start = 0; start < count; start += Batch::kSize) {
    batch.load(ids + start, std::min(Batch::kSize, count - start), f.half);
    while (batch.count) {
      batch.step<kInverse>(f);
      batch.store(out + start, numel, f.half);
    }
  }
}

}  // namespace sparsewire
