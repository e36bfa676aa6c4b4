// Listing what exceeds a floor in a dense array, on threads, and guessing that floor from a sample.
#pragma once

#include "select_rank.hpp"

namespace sparsewire {

constexpr size_t kSmall = 4096;               // below, sampling costs more than it saves
constexpr size_t kPart = size_t{1} << 17;     // what is worth a thread
constexpr size_t kMaxPart = size_t{1} << 30;  // entries that an int32 offset counts safely

template <class T>
struct Workspace {
  Scratch<int32_t> indices;
  Scratch<T> values, sampled, resampled, rest, total;
};

template <class T>
Workspace<T>& workspace() {
  thread_local Workspace<T> space;
  return space;
}

inline const Scans& scans() {
#if defined(__x86_64__)
  if (isa() == Isa::avx512) return avx512_scans;
  if (isa() == Isa::avx2) return avx2_scans;
#endif
  return plain_scans;
}

template <class T>
const Passes<T>& passes() {
  if constexpr (sizeof(T) == 4) return scans().of_float;
  if constexpr (sizeof(T) == 8) return scans().of_double;
}

// The entries that one thread listed; indices count from `base`.
template <class T>
struct Part {
  size_t base, end;
  int32_t* indices;
  T* values;
  size_t size = 0;
  bool complete = true;
};

template <class T>
struct Hits {
  std::vector<Part<T>> parts;
  size_t size = 0;
  bool complete = true;
};

// The array to select from: x, or with terms a compensated gradient, which is nowhere in memory.
template <class T>
struct Dense {
  const T* x;
  size_t size;
  int threads;
  Terms<T> terms = {};
  Sign sign = Sign::any;  // what is looked for

  Cut<T> cut(Bits<T> floor) const { return Cut<T>(sign == Sign::any ? floor : std::max<Bits<T>>(floor, 0), sign); }
};

// Lists a part until there are more than `capacity` hits.
template <class T>
void fill(const Dense<T>& dense, Bits<T> floor, size_t capacity, Part<T>& part) {
  const Scan<T> list = passes<T>().scan[static_cast<int>(mode_of(dense.terms))];
  const Cut<T> cut = dense.cut(floor);
  each_block(dense.x, part.base, part.end, kBlock<T>, [&](size_t at, size_t stop) {
    if (!part.complete) return;
    part.size += list(dense.terms.from(at), dense.x + at, stop - at, static_cast<int32_t>(at - part.base), cut,
                      part.indices + part.size, part.values + part.size);
    part.complete = part.size <= capacity;
  });
}

template <class T>
Hits<T> collect(const Dense<T>& dense, Bits<T> floor, size_t capacity) {
  const size_t threads = std::clamp<size_t>(dense.size / kPart, 1, std::max(1, dense.threads));
  const size_t parts = std::max(threads, (dense.size + kMaxPart - 1) / kMaxPart);
  const size_t length = (dense.size / parts / kBlock<T> + 1) * kBlock<T>;
  const size_t room = std::min(capacity, length) + kBlock<T> + kSlack;
  int32_t* indices = workspace<T>().indices.take(parts * room);
  T* values = workspace<T>().values.take(parts * room);
  Hits<T> hits;
  for (size_t i = 0; i < parts; ++i) {
    const size_t base = std::min(dense.size, i * length), end = std::min(dense.size, base + length);
    hits.parts.push_back({base, end, indices + i * room, values + i * room});
  }
  parallel(static_cast<int>(threads), [&](int thread) {
    for (size_t i = thread; i < parts; i += threads) fill(dense, floor, room - kBlock<T> - kSlack, hits.parts[i]);
  });
  for (const auto& part : hits.parts) hits.size += part.size, hits.complete &= part.complete;
  return hits;
}

// Magnitudes that surround the k-th, as far as a sample can tell.
template <class T>
struct Bracket {
  Bits<T> low, high;
  bool common;      // `low` is a value that fills much of the array
  size_t capacity;  // for what exceeds it

  Bits<T> floor() const { return common ? low : low - 1; }
};

// The sample is itself sampled first: only what exceeds a floor then needs histograms.
template <class T>
Hits<T> top_of_sample(T* sampled, size_t size, size_t rank) {
  T* again;
  const size_t few = sample<T>({}, sampled, size, workspace<T>().resampled, again);
  const double expected = static_cast<double>(rank) * static_cast<double>(few) / static_cast<double>(size);
  const size_t few_rank = std::min(few, static_cast<size_t>(expected + 4 * (std::sqrt(expected) + 1)));
  const Bits<T> floor = select_dense(again, few, few_rank, workspace<T>().rest).bits - 1;
  const Dense<T> dense{sampled, size, 1};
  Hits<T> hits = collect(dense, floor, size);
  return hits.size >= rank ? hits : collect<T>(dense, -1, size);
}

// The margin is in standard deviations, as if entries were independent.
template <class T>
Bracket<T> bracket(T* sampled, size_t size, size_t n, size_t k, double margin) {
  const double share = static_cast<double>(size) / static_cast<double>(n), rank = static_cast<double>(k) * share;
  const double spread = margin * (std::sqrt(rank) + 1);
  const size_t low_rank = std::min(size, static_cast<size_t>(rank + spread));
  const Part<T> top = top_of_sample(sampled, size, low_rank).parts[0];
  const auto ranked = [&](size_t r) { return select_dense(top.values, top.size, r, workspace<T>().rest).bits; };
  const Bits<T> low = ranked(low_rank), high = rank - spread < 1 ? kMaxBits<T> : ranked(rank - spread);
  const bool common = count_above<T>(top.values, top.size, low - 1) > 2 * low_rank;
  const size_t expected = static_cast<size_t>(static_cast<double>(low_rank) / share);
  return {low, high, common, std::min(2 * expected, expected + n / 16) + kSmall};
}

}  // namespace sparsewire
