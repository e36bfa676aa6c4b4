// bloom_conflicts: DeepReduce's policy P2, the surest positives first.
#include "bloom.hpp"

namespace sparsewire {
namespace {

// In buffers that are used again: fresh memory of this size costs as much as all that is done in it.
struct Set {
  uint32_t start, size;
};

template <class T>
struct List {
  explicit List(size_t most) : items(most) {}
  T* begin() { return items.data(); }
  T* end() { return items.data() + size; }
  void push(T item) { items.data()[size++] = item; }

  Buffer<T> items;
  size_t size = 0;
};

using Pairs = List<uint64_t>;
using Sets = List<Set>;

// (bit, which positive) for every bit a positive hashes to, each once, sorted.
void fill_pairs(const Filter& filter, const Places& places, Pairs& pairs) {
  for (uint64_t i = 0; i < places.size(); ++i)
    filter.each_bit(places[i], [&](uint64_t bit) { pairs.push(bit << 32 | i); });
  radix_sort(pairs.begin(), pairs.size, 32, bit_length(filter.bits - 1));
  pairs.size = std::unique(pairs.begin(), pairs.end()) - pairs.begin();
}

void fill_sets(Pairs& pairs, Sets& sets) {
  const uint64_t* pair = pairs.begin();
  for (size_t at = 0, end; at < pairs.size; at = end) {
    for (end = at + 1; end < pairs.size && pair[end] >> 32 == pair[at] >> 32;) ++end;
    sets.push({static_cast<uint32_t>(at), static_cast<uint32_t>(end - at)});
  }
}

// By counting; those of one size stay in their order.
void sort_by_size(Sets& sets, Sets& out) {
  uint32_t most = 0;
  for (const Set& set : sets) most = std::max(most, set.size);
  std::vector<size_t> starts(size_t{most} + 2);
  for (const Set& set : sets) ++starts[set.size + 1];
  for (size_t i = 0; i <= most; ++i) starts[i + 1] += starts[i];
  for (const Set& set : sets) out.begin()[starts[set.size]++] = set;
  out.size = sets.size;
}

// Which positives p2 takes. A draw removes an element from its set whether it was taken before or not, so that the work
// is bounded by the number of pairs.
std::vector<bool> draw(uint64_t* pairs, Sets& sets, size_t places, size_t wanted, uint64_t key) {
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
      if (set.size) sets.begin()[left++] = set;
    }
    sets.size = left;
  }
  return taken;
}

std::vector<bool> choose(const Filter& filter, const Places& places, size_t wanted) {
  Pairs pairs(places.size() * filter.hashes);
  fill_pairs(filter, places, pairs);
  const size_t most = std::min<uint64_t>(pairs.size, filter.bits);  // a small filter has few sets, however many pairs
  Sets found(most), sets(most);
  fill_sets(pairs, found);
  sort_by_size(found, sets);
  return draw(pairs.begin(), sets, places.size(), wanted, filter.key);
}

template <class Index>
Out<Index> bloom_conflicts(In<Index> ids, int64_t numel, int64_t bits, int64_t hashes, int64_t words, uint64_t key,
                           int64_t count) {
  const Filter filter(numel, bits, hashes, words, key);
  const size_t size = ids.size(), wanted = to_count(count);
  require(wanted <= size, "there are fewer positives than entries");
  require(size <= kMostBits / kMostHashes, "there are too many positives");
  Buffer<Index> out(wanted);
  without_gil([&, from = ids.data()] {
    const std::vector<bool> taken = choose(filter, places_of(filter, from, size), wanted);
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
