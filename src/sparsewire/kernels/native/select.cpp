// Exact selection of the largest entries in one pass over the dense array.
//
// 1. A sample of cache lines gives a floor that slightly more than k magnitudes exceed.
// 2. One pass lists what exceeds it (of the gradient, or of a compensated gradient that is never written out).
// 3. Histograms over the list find the k-th magnitude, and the list is filtered.
// Where the sample misled (few distinct values, hidden clusters) the k-th magnitude comes from dense histograms.
#include <string>

#include "select_collect.hpp"

namespace sparsewire {
namespace {

template <class T, class Index>
class Chosen {
 public:
  // More than asked for, as the filter writes before it knows whether to keep.
  explicit Chosen(size_t size) : indices_(size + kVector), values_(size + kVector), wanted_(size) {}
  bool full() const { return size_ == wanted_; }
  void clear() { size_ = 0; }

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
  const Bits<T> floor = edge.ties ? edge.bits - 1 : edge.bits;
  size_t at = 0;
  for (; at < dense.size && !out.full() && !(only_ties && edge.ties == 0); at += kBlock<T>) {
    const size_t n = std::min(kBlock<T>, dense.size - at);
    const size_t size = list({}, x + at, n, 0, floor, indices, values);
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

// False if the sample was no guide.
template <class T, class Index>
bool take_sampled(const Dense<T>& dense, size_t k, Chosen<T, Index>& out) {
  T* sampled;
  const size_t size = sample(dense.terms, dense.x, dense.size, workspace<T>().sampled, sampled);
  for (const double margin : {3.5, 30.0}) {
    const Bracket<T> edges = bracket(sampled, size, dense.size, k, margin);
    const Hits<T> hits = collect(dense, edges.floor(), edges.capacity);
    if (!hits.complete) return false;
    if (hits.size >= k) return take_largest(hits, edges, k, out), true;
    // A common value was left out of the list: its first occurrences are easily found again.
    if (dense.terms.residual && edges.common) return false;
    if (edges.common && take_with_ties(dense, hits, {edges.low, k - hits.size}, out)) return true;
    out.clear();
  }
  return false;
}

template <class T, class Index>
void take_topk_of_copy(const Dense<T>& dense, size_t k, Chosen<T, Index>& out);

template <class T, class Index>
void take_topk(const Dense<T>& dense, size_t k, Chosen<T, Index>& out) {
  const bool sampling = dense.size >= kSmall && k <= dense.size / 8 && k > 0;
  if (sampling && take_sampled(dense, k, out)) return;
  out.clear();
  if (dense.terms.residual) return take_topk_of_copy(dense, k, out);
  if (k > 0) take_exact(dense, k, out);
}

// The sum needs more than one pass after all: written down once, it can be read as often as needed.
template <class T, class Index>
void take_topk_of_copy(const Dense<T>& dense, size_t k, Chosen<T, Index>& out) {
  T* total = workspace<T>().total.take(dense.size);
  passes<T>().combine(dense.terms, dense.x, dense.size, total);
  take_topk(Dense<T>{total, dense.size, dense.threads}, k, out);
}

bool fits_int32(size_t size) { return size <= size_t{1} << 31; }

template <class T, class Index>
nb::object choose(const Dense<T>& dense, size_t k) {
  Chosen<T, Index> out(k);
  {
    nb::gil_scoped_release release;
    take_topk(dense, k, out);
  }
  return out.release();
}

// Those above the floor, listed in one pass; where they are more than k, the k largest, which are above it as well.
template <class T, class Index>
nb::object choose_above(const Dense<T>& dense, size_t k, Bits<T> floor) {
  std::optional<Chosen<T, Index>> out;
  {
    nb::gil_scoped_release release;
    const Hits<T> hits = collect(dense, floor, k);
    const bool all = hits.complete && hits.size <= k;
    out.emplace(all ? hits.size : k);
    all ? take_all(hits, {floor, 0}, *out) : take_topk(dense, k, *out);
  }
  return out->release();
}

template <class T, class Index>
nb::object choose_from(const Dense<T>& dense, size_t k, Bits<T> floor) {
  return floor < 0 ? choose<T, Index>(dense, k) : choose_above<T, Index>(dense, k, floor);
}

template <class T>
Bits<T> floor_of(int64_t edge) {
  require(edge >= 0 && edge <= kInfinity<T>, "an edge is the bits of no magnitude");
  return static_cast<Bits<T>>(edge) - 1;
}

template <class T>
nb::object topk_of(const Dense<T>& dense, int64_t k, int64_t edge) {
  const Bits<T> floor = floor_of<T>(edge);
  if (k < 0 || static_cast<size_t>(k) > dense.size)
    throw std::invalid_argument("k must lie in 0…" + std::to_string(dense.size) + ", not " + std::to_string(k));
  return fits_int32(dense.size) ? choose_from<T, int32_t>(dense, k, floor) : choose_from<T, int64_t>(dense, k, floor);
}

template <class T>
nb::object topk(const In<T>& x, int64_t k, int64_t edge, int threads) {
  return topk_of(Dense<T>{x.data(), x.size(), threads}, k, edge);
}

template <class T>
nb::object topk_sum(const In<T>& residual, const In<T>& x, int64_t k, double decay, double gain, int64_t edge,
                    int threads) {
  require(residual.size() == x.size(), "the residual and x differ in size");
  const Terms<T> terms{residual.data(), static_cast<T>(decay), static_cast<T>(gain)};
  return topk_of(Dense<T>{x.data(), x.size(), threads, terms}, k, edge);
}

// How many hits to make room for; 0 if there may be so many that two passes are cheaper than the room.
template <class T>
size_t expect(const Dense<T>& dense, Bits<T> floor) {
  if (dense.size < kSmall) return dense.size;
  T* sampled;
  const size_t size = sample<T>({}, dense.x, dense.size, workspace<T>().sampled, sampled);
  const size_t hits = count_above(sampled, size, floor);
  return hits > size / 8 ? 0 : dense.size / size * hits * 3 / 2 + dense.size / 64 + kSmall;
}

template <class T, class Index>
nb::object threshold_of(const Dense<T>& dense, Bits<T> floor) {
  std::optional<Chosen<T, Index>> out;
  {
    nb::gil_scoped_release release;
    Edge<T> edge{floor, 0};
    const size_t room = expect(dense, floor);
    const Hits<T> hits = room ? collect(dense, floor, room) : Hits<T>{{}, 0, false};
    out.emplace(hits.complete ? hits.size : count_above(dense.x, dense.size, floor));
    hits.complete ? take_all(hits, edge, *out) : void(take_dense(dense, edge, false, *out));
  }
  return out->release();
}

template <class T>
nb::object threshold(const In<T>& x, int64_t edge, int threads) {
  const Dense<T> dense{x.data(), x.size(), threads};
  const Bits<T> floor = floor_of<T>(edge);
  return fits_int32(dense.size) ? threshold_of<T, int32_t>(dense, floor) : threshold_of<T, int64_t>(dense, floor);
}

template <class T>
uint64_t read(const In<T>& x) {
  nb::gil_scoped_release release;
  return scans().read(reinterpret_cast<const char*>(x.data()), x.size() * sizeof(T));
}

template <class T>
void bind(nb::module_& m) {
  using nb::arg;
  m.def("topk", &topk<T>, arg("x").noconvert(), arg("k"), arg("edge") = 0, arg("threads") = 1);
  m.def("topk_sum", &topk_sum<T>, arg("residual").noconvert(), arg("x").noconvert(), arg("k"), arg("decay") = 1.0,
        arg("gain") = 1.0, arg("edge") = 0, arg("threads") = 1);
  m.def("threshold", &threshold<T>, arg("x").noconvert(), arg("edge"), arg("threads") = 1);
  m.def("read", &read<T>, arg("x").noconvert());
}

const Binder binder([](nb::module_& m) {
  bind<float>(m);
  bind<double>(m);
});

}  // namespace
}  // namespace sparsewire
