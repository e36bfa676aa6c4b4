// The k-th largest magnitude: exactly, by histograms that narrow a range, and roughly, from a sample.
#pragma once

#include <algorithm>
#include <cmath>

#include "select_scan.hpp"

namespace sparsewire {

// What the k largest are: everything above `bits`, and the first `ties` that equal it.
template <class T>
struct Edge {
  Bits<T> bits;
  size_t ties;
};

// An inclusive range of magnitudes and a rank in it, 1 for the largest.
template <class T>
struct Range {
  Bits<T> low = 0, high = kMaxBits<T>;
  size_t rank = 1;
};

template <class T>
size_t count_above(const T* x, size_t n, Bits<T> floor) {
  Bits<T> count = 0;
  size_t total = 0;
  for (size_t start = 0; start < n; start += size_t{1} << 30, total += count, count = 0)
    for (size_t i = start, end = std::min(n, start + (size_t{1} << 30)); i < end; ++i) count += magnitude(x[i]) > floor;
  return total;
}

// Copies the magnitudes that lie in the range, in order, and returns how many. `out` may be x itself.
template <class T>
size_t keep(const T* x, size_t n, Bits<T> low, Bits<T> high, T* out, size_t capacity) {
  size_t size = 0;
  for (size_t i = 0; i < n && size < capacity; ++i) {
    const Bits<T> bits = magnitude(x[i]);
    std::memcpy(out + size, &bits, sizeof bits);
    size += (bits >= low) & (bits <= high);
  }
  return size;
}

// The same for a list of this thread's own, with room for kVector more at `out`.
template <class T>
size_t keep_listed(const T* x, size_t n, Bits<T> low, Bits<T> high, T* out) {
#if defined(__x86_64__)
  if constexpr (sizeof(T) == 4)
    if (isa() != Isa::plain) return keep_avx2(x, n, low, high, out);
#endif
  return keep(x, n, low, high, out, n);
}

// The position after the last of the edge's ties, or n if some lie beyond; takes those found off the edge.
template <class T>
size_t end_of_ties(const T* x, size_t n, Edge<T>& edge) {
  constexpr size_t kChunk = 256;
  for (size_t start = 0; start < n; start += kChunk) {
    const size_t end = std::min(n, start + kChunk);
    Bits<T> found = 0;
    for (size_t i = start; i < end; ++i) found += magnitude(x[i]) == edge.bits;
    if (static_cast<size_t>(found) >= edge.ties)
      for (size_t i = start; i < end; ++i)
        if (magnitude(x[i]) == edge.bits && --edge.ties == 0) return i + 1;
    edge.ties -= found;
  }
  return n;
}

// Narrows the range to the one of 1024 bins that holds the rank, and returns how many of x lie in it.
// The range must be a power of two wide, or hold all of x.
template <class T>
size_t narrow(const T* x, size_t n, Range<T>& range) {
  using Unsigned = std::make_unsigned_t<Bits<T>>;
  constexpr size_t kBins = 1024;
  const Unsigned low = range.low, width = static_cast<Unsigned>(range.high) - low;
  int shift = 0;
  while (width >> shift >= kBins) ++shift;
  size_t counts[2][kBins + 1] = {};  // two, as counting the same bin twice in a row would wait for the store
  for (size_t i = 0; i < n; ++i) {
    const Unsigned bin = (static_cast<Unsigned>(magnitude(x[i])) - low) >> shift;
    ++counts[i % 2][std::min<Unsigned>(bin, kBins)];
  }
  size_t bin = width >> shift, size;  // what lies outside the range was counted beyond this bin
  while ((size = counts[0][bin] + counts[1][bin]) < range.rank && bin > 0) range.rank -= size, --bin;
  range.low = static_cast<Bits<T>>(low + (static_cast<Unsigned>(bin) << shift));
  range.high = static_cast<Bits<T>>(std::min(low + width, range.low + ((Unsigned{1} << shift) - 1)));
  return size;
}

// The edge of that rank among x, all of which lies in the range. Overwrites x.
template <class T>
Edge<T> select_within(T* x, size_t n, Range<T> range) {
  while (range.low < range.high) {
    narrow(x, n, range);
    n = keep_listed(x, n, range.low, range.high, x);
  }
  return {range.low, range.rank};
}

// The same for an array that must not be copied as a whole: narrows in place until the rest fits the scratch.
template <class T>
Edge<T> select_dense(const T* x, size_t n, size_t rank, Scratch<T>& scratch) {
  const size_t capacity = std::max<size_t>(4096, n / 16);
  Range<T> range;
  range.rank = rank;
  size_t left = n;
  while (left > capacity && range.low < range.high) left = narrow(x, n, range);
  if (range.low == range.high) return {range.low, range.rank};
  T* rest = scratch.take(left);
  return select_within(rest, keep(x, n, range.low, range.high, rest, left), range);
}

// Pairs of cache lines at even distances, each moved a little so that no period of the data aligns with them: where one
// begins.
struct Spots {
  size_t count, stride, length;

  size_t operator[](size_t spot) const {
    const uint32_t jitter = static_cast<uint32_t>(spot) * 0x9E3779B9u;
    return (spot * stride + (jitter * stride >> 32)) * length;
  }
};

constexpr size_t kSpots = 4096;  // of a sample, at most

// With terms, a sample of the compensated gradient. What processors cannot foresee is fetched in time.
template <class T>
size_t sample(const Terms<T>& terms, const T* x, size_t n, Scratch<T>& scratch, T*& out, size_t most = kSpots) {
  constexpr size_t kSpot = 128 / sizeof(T), kAhead = 32;
  const size_t count = std::clamp<size_t>(n / 2048, 64, most);
  const Spots spots{count, n / kSpot / count, kSpot};
  out = scratch.take(count * kSpot);
  for (size_t spot = 0; spot < count; ++spot) {
    const size_t at = spots[spot], soon = spots[std::min(spot + kAhead, count - 1)];
    for (size_t half = 0; half < kSpot; half += kSpot / 2) {
      __builtin_prefetch(x + soon + half);
      if (terms.residual) __builtin_prefetch(terms.residual + soon + half);
    }
    combine_all(terms.from(at), x + at, kSpot, out + spot * kSpot);
  }
  return count * kSpot;
}

}  // namespace sparsewire
