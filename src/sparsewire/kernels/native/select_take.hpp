// Taking the largest entries of a dense array, in one pass over it.
//
// 1. A sample of cache lines gives a floor that slightly more than k magnitudes exceed, or the edge of the last step does.
// 2. One pass lists what exceeds it (of the gradient, or of a compensated gradient that is never written out).
// 3. Histograms over the list find the k-th magnitude, and the list is filtered.
// Where the sample misled (few distinct values, hidden clusters) the k-th magnitude comes from dense histograms.
#pragma once

#include <string>

#include "select_collect.hpp"

namespace sparsewire {

template <class T, class Index>
class Chosen {
 public:
  // More than asked for, as the filter writes before it knows whether to keep.
  explicit Chosen(size_t size) : indices_(size + kVector), values_(size + kVector), wanted_(size) {}
  bool full() const { return size_ == wanted_; }
  void clear() { size_ = 0; }
  size_t size() const { return size_; }
  const T* values() { return values_.data(); }

  // Zeros are not wanted where one sign is: they have filled up what was missing.
  void drop_zeros() {
    size_t size = 0;
    for (size_t i = 0; i < size_; ++i) {
      indices_.data()[size] = indices_.data()[i];
      values_.data()[size] = values_.data()[i];
      size += magnitude(values_.data()[i]) > 0;
    }
    size_ = size;
  }

  // Of n listed entries, those above the edge, and those at the edge while it has ties left.
  void take(const int32_t* indices, const T* values, size_t n, size_t base, Edge<T>& edge) {
    const size_t tied = edge.ties ? end_of_ties(values, n, edge) : 0;
    take(indices, values, tied, base, edge.bits - 1);
    take(indices + tied, values + tied, n - tied, base, edge.bits);
  }

  nb::object release() {
    return nb::make_tuple(nb::cast(indices_.release(size_)), nb::cast(values_.release(size_)));
  }

 private:
  // As many at a time as surely fit, while they are worth a call.
  size_t take_vectors(const int32_t* indices, const T* values, size_t n, size_t base, Bits<T> floor) {
    size_t at = 0;
#if defined(__x86_64__)
    if constexpr (sizeof(T) == 4 && sizeof(Index) == 4)
      for (size_t some; isa() != Isa::plain && (some = std::min(n - at, wanted_ - size_)) >= 4 * kVector; at += some)
        size_ += filter_avx2(indices + at, values + at, some, static_cast<int32_t>(base), floor,
                             indices_.data() + size_, values_.data() + size_);
#endif
    return at;
  }

  void take(const int32_t* indices, const T* values, size_t n, size_t base, Bits<T> floor) {
    const size_t start = take_vectors(indices, values, n, base, floor);
    size_t size = size_;
    for (size_t i = start; i < n && size < wanted_; ++i) {
      indices_.data()[size] = static_cast<Index>(base + indices[i]);
      values_.data()[size] = values[i];
      size += magnitude(values[i]) > floor;
    }
    size_ = size;
  }

  Buffer<Index> indices_;
  Buffer<T> values_;
  size_t wanted_, size_ = 0;
};

// Takes straight from the dense array, until all is taken or, if so asked, no tie is left; returns where it stopped.
template <class T, class Index>
size_t take_dense(const Dense<T>& dense, Edge<T>& edge, bool only_ties, Chosen<T, Index>& out) {
  int32_t indices[kBlock<T> + kSlack];
  T values[kBlock<T> + kSlack];
  const T* x = dense.x;
  const Scan<T> list = passes<T>().scan[static_cast<int>(Mode::list)];
  const Cut<T> cut(edge.ties ? edge.bits - 1 : edge.bits);
  size_t at = 0;
  for (; at < dense.size && !out.full() && !(only_ties && edge.ties == 0); at += kBlock<T>) {
    const size_t n = std::min(kBlock<T>, dense.size - at);
    const size_t size = list({}, x + at, n, 0, cut, indices, values);
    out.take(indices, values, size, at, edge);
  }
  return at;
}

template <class T, class Index>
void take_exact(const Dense<T>& dense, size_t k, Chosen<T, Index>& out) {
  Edge<T> edge = select_dense(dense.x, dense.size, k, workspace<T>().rest);
  take_dense(dense, edge, false, out);
}

template <class T, class Index>
void take_all(const Hits<T>& hits, Edge<T> edge, Chosen<T, Index>& out) {
  for (const auto& part : hits.parts) out.take(part.indices, part.values, part.size, part.base, edge);
}

// Gathers the magnitudes in the range.
template <class T>
size_t keep_hits(const Hits<T>& hits, Bits<T> low, Bits<T> high, T* out) {
  size_t size = 0;
  for (const auto& part : hits.parts)
    size += keep_listed(part.values, part.size, low, high, out + size);
  return size;
}

template <class T, class Index>
void take_largest(const Hits<T>& hits, const Bracket<T>& bracket, size_t k, Chosen<T, Index>& out) {
  T* rest = workspace<T>().rest.take(hits.size + kVector);
  Range<T> range{bracket.floor() + 1, bracket.high, k};
  size_t size = keep_hits(hits, range.low, range.high, rest);
  const size_t above = hits.size - size;
  if (above < k) {
    range.rank -= above;
  } else {
    range = {bracket.high + 1, kMaxBits<T>, k};
    size = keep_hits(hits, range.low, range.high, rest);
  }
  take_all(hits, select_within(rest, size, range), out);
}

// Fewer than k exceed the edge: the first of those at it fill up, if there are enough.
template <class T, class Index>
bool take_with_ties(const Dense<T>& dense, const Hits<T>& hits, Edge<T> edge, Chosen<T, Index>& out) {
  const size_t end = take_dense(dense, edge, true, out);
  if (edge.ties) return false;
  for (const auto& part : hits.parts) {
    const auto behind = [&](int32_t index) { return part.base + index < end; };
    const size_t skip = std::partition_point(part.indices, part.indices + part.size, behind) - part.indices;
    out.take(part.indices + skip, part.values + skip, part.size - skip, part.base, edge);
  }
  return true;
}

// Zeros in the place of what does not have the sign.
template <class T>
void silence(T* x, size_t n, Sign sign) {
  const Cut<T> cut(0, sign);
  for (size_t i = 0; i < n; ++i) x[i] = cut.lists(x[i]) ? x[i] : T{0};
}

// False if the sample was no guide.
template <class T, class Index>
bool take_sampled(const Dense<T>& dense, size_t k, Chosen<T, Index>& out) {
  T* sampled;
  const size_t size = sample(dense.terms, dense.x, dense.size, workspace<T>().sampled, sampled);
  const bool one_sign = dense.sign != Sign::any;
  if (one_sign) silence(sampled, size, dense.sign);
  for (const double margin : {3.5, 30.0}) {
    const Bracket<T> edges = bracket(sampled, size, dense.size, k, margin);
    const Hits<T> hits = collect(dense, edges.floor(), edges.capacity);
    if (!hits.complete) return false;
    if (hits.size >= k) return take_largest(hits, edges, k, out), true;
    if (one_sign && edges.floor() <= 0) return take_all(hits, Edge<T>{0, 0}, out), true;  // no more have the sign
    // A common value was left out of the list: its first occurrences are easily found again.
    if ((dense.terms.residual || one_sign) && edges.common) return false;
    if (edges.common && take_with_ties(dense, hits, {edges.low, k - hits.size}, out)) return true;
    out.clear();
  }
  return false;
}

template <class T>
constexpr Bits<T> kDrift = Bits<T>{1} << (sizeof(T) == 4 ? 18 : 47);  // of an edge in a step: a 32nd of an octave

// Whether about as many as k exceed the floor, and rather more, as far as a few cache lines can tell.
template <class T>
bool seems_near(const Dense<T>& dense, size_t k, Bits<T> floor) {
  constexpr size_t kFewSpots = 1024;
  T* sampled;
  const size_t size = sample(dense.terms, dense.x, dense.size, workspace<T>().sampled, sampled, kFewSpots);
  const double share = static_cast<double>(count_above(sampled, size, floor)) / static_cast<double>(size);
  const double times = share * static_cast<double>(dense.size) / static_cast<double>(k);
  return times > 1.08 && times < 3;
}

// The same with an edge that was right for an earlier selection in the place of a sample. False if it is no guide.
template <class T, class Index>
bool take_remembered(const Dense<T>& dense, size_t k, Bits<T> edge, Chosen<T, Index>& out) {
  if (edge <= kDrift<T> || edge >= kInfinity<T>) return false;
  const Bracket<T> near{edge - kDrift<T>, edge + kDrift<T>, false, 4 * k + kSmall};
  if (!seems_near(dense, k, near.floor())) return false;
  const Hits<T> hits = collect(dense, near.floor(), near.capacity);
  if (!hits.complete || hits.size < k) return false;
  take_largest(hits, near, k, out);
  return true;
}

template <class T, class Index>
void take_topk_of_copy(const Dense<T>& dense, size_t k, Chosen<T, Index>& out);

template <class T, class Index>
void take_topk(const Dense<T>& dense, size_t k, Chosen<T, Index>& out, Bits<T> remembered = 0) {
  const bool sampling = dense.size >= kSmall && k <= dense.size / 4 * 3 && k > 0;
  if (sampling && take_remembered(dense, k, remembered, out)) return;
  if (sampling && take_sampled(dense, k, out)) return;
  out.clear();
  if (k > 0 && (dense.terms.residual || dense.sign != Sign::any)) return take_topk_of_copy(dense, k, out);
  if (k > 0) take_exact(dense, k, out);
}

// What needs more than one pass after all is written down once, and can be read as often as needed.
template <class T, class Index>
void take_topk_of_copy(const Dense<T>& dense, size_t k, Chosen<T, Index>& out) {
  T* total = workspace<T>().total.take(dense.size);
  passes<T>().combine(dense.terms, dense.x, dense.size, total);
  if (dense.sign != Sign::any) silence(total, dense.size, dense.sign);
  take_topk(Dense<T>{total, dense.size, dense.threads}, k, out);
  if (dense.sign != Sign::any) out.drop_zeros();
}

inline void check_count(int64_t k, size_t size) {
  if (k < 0 || static_cast<size_t>(k) > size)
    throw std::invalid_argument("k must lie in 0…" + std::to_string(size) + ", not " + std::to_string(k));
}

// The compensated gradient that a kernel was given.
template <class T>
Terms<T> terms_of(const In<T>& residual, const In<T>& x, double decay, double gain) {
  require(residual.size() == x.size(), "the residual and x differ in size");
  return {residual.data(), static_cast<T>(decay), static_cast<T>(gain)};
}

inline bool fits_int32(size_t size) { return size <= size_t{1} << 31; }

}  // namespace sparsewire
