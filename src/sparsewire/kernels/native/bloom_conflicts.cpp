// bloom_conflicts: DeepReduce's policy P2, the surest positives first.
#include "bloom.hpp"

namespace sparsewire {
namespace {

struct Set {
  size_t start, size;
};

// (bit, which positive) for every bit a positive hashes to, each once, sorted.
std::vector<uint64_t> bit_pairs(const Filter& filter, const Places& places) {
  std::vector<uint64_t> pairs;
  pairs.reserve(places.size() * filter.hashes);
  for (uint64_t i = 0; i < places.size(); ++i)
    filter.each_bit(places[i], [&](uint64_t bit) { pairs.push_back(bit << 32 | i); });
  radix_sort(pairs, 32, bit_length(filter.bits - 1));
  pairs.erase(std::unique(pairs.begin(), pairs.end()), pairs.end());
  return pairs;
}

// By counting; those of one size stay in their order.
std::vector<Set> by_size(const std::vector<Set>& sets) {
  size_t most = 0;
  for (const Set& set : sets) most = std::max(most, set.size);
  std::vector<size_t> starts(most + 2);
  for (const Set& set : sets) ++starts[set.size + 1];
  for (size_t i = 0; i <= most; ++i) starts[i + 1] += starts[i];
  std::vector<Set> out(sets.size());
  for (const Set& set : sets) out[starts[set.size]++] = set;
  return out;
}

std::vector<Set> conflict_sets(const std::vector<uint64_t>& pairs) {
  std::vector<Set> sets;
  for (size_t at = 0; at < pairs.size(); at += sets.back().size) {
    size_t end = at + 1;
    while (end < pairs.size() && pairs[end] >> 32 == pairs[at] >> 32) ++end;
    sets.push_back({at, end - at});
  }
  return sets;
}

// Which positives p2 takes. A draw removes an element from its set whether it was taken before or not, so that the work
// is bounded by the number of pairs.
std::vector<bool> draw(std::vector<uint64_t>& pairs, std::vector<Set>& sets, size_t places, size_t wanted,
                       uint64_t key) {
  std::vector<bool> taken(places);
  uint64_t counter = uint64_t{1} << 32;
  while (wanted) {
    size_t left = 0;
    for (Set set : sets) {
      for (bool fresh = false; set.size && wanted && !fresh;) {
        const size_t slot = set.start + ((random_at(key, counter++) >> 32) * set.size >> 32);
        const size_t which = pairs[slot] & 0xFFFFFFFF;
        pairs[slot] = pairs[set.start + --set.size];
        fresh = !taken[which];
        taken[which] = true;
        wanted -= fresh;
      }
      if (set.size) sets[left++] = set;
    }
    sets.resize(left);
  }
  return taken;
}

template <class Index>
Out<Index> bloom_conflicts(In<Index> ids, int64_t numel, int64_t bits, int64_t hashes, int64_t words, uint64_t key,
                           int64_t count) {
  const Filter filter(numel, bits, hashes, words, key);
  const size_t size = ids.size(), wanted = to_count(count);
  require(wanted <= size && size < kMostBits, "there are fewer positives than entries");
  Buffer<Index> out(wanted);
  without_gil([&, from = ids.data()] {
    std::vector<uint64_t> pairs = bit_pairs(filter, places_of(filter, from, size));
    std::vector<Set> sets = by_size(conflict_sets(pairs));
    const std::vector<bool> taken = draw(pairs, sets, size, wanted, filter.key);
    for (size_t i = 0, at = 0; i < size; ++i)
      if (taken[i]) out.data()[at++] = from[i];
  });
  return out.release();
}

template <class Index>
void bind(nb::module_& m) {
  m.def("bloom_conflicts", &bloom_conflicts<Index>, nb::arg("positives").noconvert(), nb::arg("numel"),
        nb::arg("bits"), nb::arg("hashes"), nb::arg("words"), nb::arg("key"), nb::arg("count"));
}

const Binder binder([](nb::module_& m) {
  bind<int32_t>(m);
  bind<int64_t>(m);
});

}  // namespace
}  // namespace sparsewire
