// Bloom filters: bloom_build, bloom_positives (every id against the filter).
//
// In the blocked layout ids are permuted first and each block serves a range of them: a scan in that order has the
// block in two registers, and only what it lists is taken back and sorted.
#include "bloom.hpp"

namespace sparsewire {
namespace {

template <class Index>
Out<uint8_t> bloom_build(In<Index> ids, int64_t numel, int64_t bits, int64_t hashes, int64_t words, uint64_t key) {
  const Filter filter(numel, bits, hashes, words, key);
  Buffer<uint8_t> out(bytes_of(filter.bits));
  without_gil([&, from = ids.data(), count = ids.size()] {
    std::fill_n(out.data(), out.size(), uint8_t{0});
    uint8_t* const data = out.data();
    for (const uint64_t place : places_of(filter, from, count))
      filter.each_bit(place, [=](uint64_t bit) { data[bit / 8] |= static_cast<uint8_t>(1u << bit % 8); });
  });
  return out.release();
}

// --- enumeration -------------------------------------------------------------------------------------------------

SPARSEWIRE_INLINE bool has(const uint8_t* data, uint64_t bit) { return data[bit / 8] >> bit % 8 & 1; }

constexpr uint64_t kStretch = 4096;  // ids between two looks at the limit

void scan_classic(const Filter& filter, const uint8_t* data, size_t limit, Places& out) {
  const unsigned last = filter.hashes - 1;
  for (uint64_t id = 0; id < filter.numel && out.size() <= limit; ++id) {
    bool found = true;  // both bits of a pair before a branch: half of them are set, which nothing predicts
    for (unsigned hash = 0; found && hash <= last; hash += 2) {
      const uint64_t random = filter.classic_random(id, hash);
      const unsigned second = hash < last;
      found = has(data, filter.classic_bit(random, 0)) & has(data, filter.classic_bit(random, second));
    }
    if (found) out.push_back(id);
  }
}

void scan_block(const Filter& filter, const uint8_t* block, uint64_t from, uint64_t to, Places& out) {
  for (uint64_t place = from; place < to; ++place) {
    const uint32_t mixed = mix32(static_cast<uint32_t>(place) ^ filter.seed);
    unsigned hash = 0;
    while (hash < filter.hashes && has(block, filter.block_bit(mixed, hash))) ++hash;
    if (hash == filter.hashes) out.push_back(place);
  }
}

#if defined(__x86_64__)
// Eight ids at a time; a half of the block is eight words in one register, so a permutation looks a word up.
struct Lanes {
  __m256i low, high, words;

  // The lowest bit of each lane stays set where the pair of hashes finds its bits.
  SPARSEWIRE_AVX2 SPARSEWIRE_INLINE __m256i test(__m256i mixed, unsigned pair, bool both, __m256i found) const {
    const __m256i mask = _mm256_set1_epi32(31);
    __m256i x = _mm256_mullo_epi32(mixed, _mm256_set1_epi32(static_cast<int>(kMultipliers.at[pair])));
    x = _mm256_xor_si256(x, _mm256_srli_epi32(x, 16));
    const __m256i word = _mm256_mulhi_epu16(x, words);
    const __m256i first = _mm256_permutevar8x32_epi32(low, word);
    found = _mm256_and_si256(found, _mm256_srlv_epi32(first, _mm256_and_si256(x, mask)));
    if (!both) return found;
    const __m256i second = _mm256_permutevar8x32_epi32(high, _mm256_srli_epi32(word, 16));
    const __m256i shift = _mm256_and_si256(_mm256_srli_epi32(x, 16), mask);
    return _mm256_and_si256(found, _mm256_srlv_epi32(second, shift));
  }
};

SPARSEWIRE_AVX2 SPARSEWIRE_INLINE __m256i mix32(__m256i x) {
  x = _mm256_xor_si256(x, _mm256_srli_epi32(x, 16));
  x = _mm256_mullo_epi32(x, _mm256_set1_epi32(static_cast<int>(0x85EBCA6B)));
  x = _mm256_xor_si256(x, _mm256_srli_epi32(x, 13));
  x = _mm256_mullo_epi32(x, _mm256_set1_epi32(static_cast<int>(0xC2B2AE35)));
  return _mm256_xor_si256(x, _mm256_srli_epi32(x, 16));
}

SPARSEWIRE_AVX2 inline Lanes load_lanes(const uint8_t* block, unsigned words) {
  const __m256i lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  const __m256i mask = _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(words)), lanes);
  const int* first = reinterpret_cast<const int*>(block);
  const int* second = reinterpret_cast<const int*>(block + 4 * words);
  return {_mm256_maskload_epi32(first, mask), _mm256_maskload_epi32(second, mask),
          _mm256_set1_epi16(static_cast<short>(words))};
}

// For each mask, the lanes that it keeps, in front.
constexpr auto kFronts = [] {
  std::array<uint64_t, 256> fronts{};
  for (unsigned mask = 0; mask < 256; ++mask)
    for (uint64_t lane = 0, at = 0; lane < 8; ++lane)
      if (mask >> lane & 1) fronts[mask] |= lane << 8 * at++;
  return fronts;
}();

// Stores those of `count` lanes whose lowest bit in `found` is set; writes all eight, returns how many count.
SPARSEWIRE_AVX2 SPARSEWIRE_INLINE unsigned keep(__m256i lanes, __m256i found, uint64_t count, uint32_t* to) {
  unsigned mask = static_cast<unsigned>(_mm256_movemask_ps(_mm256_castsi256_ps(_mm256_slli_epi32(found, 31))));
  if (count < 8) mask &= (1u << count) - 1;
  const __m256i front = _mm256_cvtepu8_epi32(_mm_cvtsi64_si128(static_cast<int64_t>(kFronts[mask])));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm256_permutevar8x32_epi32(lanes, front));
  return static_cast<unsigned>(__builtin_popcount(mask));
}

// `kEager` pairs of hashes for all, then the rest for those that are left: lists, as branches would be mispredicted.
template <unsigned kEager>
SPARSEWIRE_AVX2 void scan_block_avx2(const Filter& filter, const uint8_t* block, uint64_t from, uint64_t to,
                                     Places& out) {
  uint32_t kept[kStretch + 8];
  const Lanes lanes = load_lanes(block, filter.words);
  const unsigned pairs = (filter.hashes + 1) / 2, whole = filter.hashes / 2;
  const __m256i one = _mm256_set1_epi32(1), seed = _mm256_set1_epi32(static_cast<int>(filter.seed));
  const __m256i first = _mm256_set1_epi32(static_cast<int>(static_cast<uint32_t>(from)));
  __m256i offsets = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  size_t size = 0, left = 0;
  for (uint64_t at = from; at < to; at += 8, offsets = _mm256_add_epi32(offsets, _mm256_set1_epi32(8))) {
    const __m256i mixed = mix32(_mm256_xor_si256(_mm256_add_epi32(first, offsets), seed));
    __m256i found = one;
    for (unsigned pair = 0; pair < kEager; ++pair) found = lanes.test(mixed, pair, true, found);
    size += keep(offsets, found, to - at, kept + size);
  }
  for (size_t at = 0; at < size; at += 8) {
    offsets = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(kept + at));
    const __m256i mixed = mix32(_mm256_xor_si256(_mm256_add_epi32(first, offsets), seed));
    __m256i found = one;
    for (unsigned pair = kEager; pair < pairs; ++pair) found = lanes.test(mixed, pair, pair < whole, found);
    left += keep(offsets, found, size - at, kept + left);
  }
  for (size_t i = 0; i < left; ++i) out.push_back(from + kept[i]);
}
#endif

auto block_scanner(const Filter& filter) {
#if defined(__x86_64__)
  if (isa() != Isa::plain) {
    if (filter.hashes >= 4) return &scan_block_avx2<2>;
    return filter.hashes >= 2 ? &scan_block_avx2<1> : &scan_block_avx2<0>;
  }
#endif
  (void)filter;
  return &scan_block;
}

void scan_blocked(const Filter& filter, const uint8_t* data, size_t limit, Places& out) {
  const auto scan = block_scanner(filter);
  const uint64_t step = 8 * filter.words;
  for (uint64_t block = 0, from = 0; block < filter.blocks; ++block) {
    const uint64_t end = filter.start(block + 1);
    for (; from < end && out.size() <= limit; from = std::min(end, from + kStretch))
      scan(filter, data + block * step, from, std::min(end, from + kStretch), out);
  }
}

Places positives(const Filter& filter, const uint8_t* data, size_t limit) {
  Places found;
  found.reserve(std::min<uint64_t>(limit, filter.bits / 8) + 8);  // rather more than the entries
  if (filter.words)
    scan_blocked(filter, data, limit, found);
  else
    scan_classic(filter, data, limit, found);
  require(found.size() <= limit, "the Bloom filter has too many positives");
  filter.to_ids(found);
  if (filter.words) radix_sort(found.data(), found.size(), 0, bit_length(filter.numel - 1));
  return found;
}

template <class Index>
nb::object release_as(const std::vector<uint64_t>& ids) {
  Buffer<Index> out(ids.size());
  std::copy(ids.begin(), ids.end(), out.data());
  return nb::cast(out.release());
}

nb::object bloom_positives(In<uint8_t> data, int64_t numel, int64_t bits, int64_t hashes, int64_t words, uint64_t key,
                           int64_t limit) {
  const Filter filter(numel, bits, hashes, words, key);
  require(data.size() == bytes_of(filter.bits) && (bits % 8 == 0 || data.data()[data.size() - 1] >> bits % 8 == 0),
          "the Bloom filter has another length");
  require(limit >= 0, "a limit is negative");
  const Places found = without_gil([&] { return positives(filter, data.data(), static_cast<size_t>(limit)); });
  return wide_index(filter.numel) ? release_as<int64_t>(found) : release_as<int32_t>(found);
}

const Binder binder([](nb::module_& m) {
  m.def("bloom_build", &bloom_build<int32_t>, nb::arg("indices").noconvert(), nb::arg("numel"), nb::arg("bits"),
        nb::arg("hashes"), nb::arg("words"), nb::arg("key"));
  m.def("bloom_build", &bloom_build<int64_t>, nb::arg("indices").noconvert(), nb::arg("numel"), nb::arg("bits"),
        nb::arg("hashes"), nb::arg("words"), nb::arg("key"));
  m.def("bloom_positives", &bloom_positives, nb::arg("data"), nb::arg("numel"), nb::arg("bits"), nb::arg("hashes"),
        nb::arg("words"), nb::arg("key"), nb::arg("limit"));
});

}  // namespace
}  // namespace sparsewire
