// What a Bloom filter is: its measures, and which bits an id has in it.
#pragma once

#include "permutation.hpp"

namespace sparsewire {

using Places = std::vector<uint64_t>;

constexpr uint64_t kMostIds = uint64_t{1} << 33, kMostBits = uint64_t{1} << 32;
constexpr unsigned kMostHashes = 32, kMostWords = 8;

SPARSEWIRE_INLINE uint64_t random_at(uint64_t key, uint64_t counter) { return mix(key + (counter + 1) * kGolden); }

SPARSEWIRE_INLINE uint32_t mix32(uint32_t x) {
  x = (x ^ x >> 16) * 0x85EBCA6B;
  x = (x ^ x >> 13) * 0xC2B2AE35;
  return x ^ x >> 16;
}

struct Multipliers {
  uint32_t at[kMostHashes / 2];
  Multipliers() {
    for (uint64_t i = 0; i < kMostHashes / 2; ++i) at[i] = static_cast<uint32_t>(random_at(0, i) >> 32) | 1;
  }
};
inline const Multipliers kMultipliers;

// No words: the classic layout.
struct Filter {
  uint64_t numel, bits, key, blocks = 0;
  unsigned hashes, words;
  uint32_t seed = 0;

  Filter(int64_t numel_, int64_t bits_, int64_t hashes_, int64_t words_, uint64_t key_)
      : numel(to_numel(numel_)), bits(static_cast<uint64_t>(bits_)), key(key_) {
    require(numel >= 1 && numel <= kMostIds && bits_ >= 1 && bits <= kMostBits && hashes_ >= 1 &&
                hashes_ <= kMostHashes && words_ >= 0 && words_ <= kMostWords,
            "no Bloom filter has these measures");
    hashes = static_cast<unsigned>(hashes_);
    words = static_cast<unsigned>(words_);
    if (!words) return;
    blocks = bits / (64 * words);
    seed = static_cast<uint32_t>(random_at(key, 4) >> 32);
    require(bits % (64 * words) == 0 && blocks <= numel, "no Bloom filter has these measures");
  }

  uint64_t start(uint64_t block) const { return (block * numel + blocks - 1) / blocks; }

  // A random number gives two hashes.
  uint64_t classic_random(uint64_t id, unsigned hash) const { return random_at(key, 16 * id + hash / 2); }
  uint64_t classic_bit(uint64_t random, unsigned hash) const {
    return (hash % 2 ? random & 0xFFFFFFFF : random >> 32) * bits >> 32;
  }

  // Within the block; `mixed` is mix32(place ^ seed).
  unsigned block_bit(uint32_t mixed, unsigned hash) const {
    uint32_t both = mixed * kMultipliers.at[hash / 2];
    both ^= both >> 16;
    const unsigned half = hash % 2, field = half ? both >> 16 : both & 0xFFFF;
    return 32 * (half * words + (field * words >> 16)) + field % 32;
  }

  template <class F>
  void each_bit(uint64_t place, F&& f) const {
    if (!words) {
      for (unsigned hash = 0; hash < hashes; ++hash) f(classic_bit(classic_random(place, hash), hash));
      return;
    }
    const uint64_t base = place * blocks / numel * 64 * words;
    const uint32_t mixed = mix32(static_cast<uint32_t>(place) ^ seed);
    for (unsigned hash = 0; hash < hashes; ++hash) f(base + block_bit(mixed, hash));
  }

  // Ids to where the filter has them.
  void to_places(std::vector<uint64_t>& ids) const {
    if (words)
      fastest([&](auto) SPARSEWIRE_FLATTEN {
        walk(ids.data(), ids.size(), numel, Feistel(numel, key), ids.data());
      });
  }
  void to_ids(std::vector<uint64_t>& places) const {
    if (words)
      fastest([&](auto) SPARSEWIRE_FLATTEN {
        walk<true>(places.data(), places.size(), numel, Feistel(numel, key), places.data());
      });
  }
};

template <class Index>
std::vector<uint64_t> places_of(const Filter& filter, const Index* ids, size_t count) {
  std::vector<uint64_t> places(count);
  for (size_t i = 0; i < count; ++i) {
    places[i] = static_cast<uint64_t>(static_cast<int64_t>(ids[i]));
    require(places[i] < filter.numel, "an id is outside the Bloom filter");
  }
  filter.to_places(places);
  return places;
}

// Least significant digit first, by the `width` bits from `low` on.
inline void radix_sort(uint64_t* keys, size_t count, unsigned low, unsigned width) {
  constexpr unsigned kDigit = 11;
  Buffer<uint64_t> spare(count);
  uint64_t *from = keys, *to = spare.data();
  for (; width; low += kDigit, width -= std::min(width, kDigit)) {
    size_t starts[(1 << kDigit) + 1] = {};
    for (size_t i = 0; i < count; ++i) ++starts[(from[i] >> low & low_mask(kDigit)) + 1];
    for (size_t i = 0; i < 1 << kDigit; ++i) starts[i + 1] += starts[i];
    for (size_t i = 0; i < count; ++i) to[starts[from[i] >> low & low_mask(kDigit)]++] = from[i];
    std::swap(from, to);
  }
  if (from != keys) std::copy_n(from, count, keys);
}

}  // namespace sparsewire
