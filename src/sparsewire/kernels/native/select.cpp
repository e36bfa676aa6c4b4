// Exact selection of the largest entries in one pass over the dense array.
//
// 1. A sample of cache lines gives a floor that slightly more than k magnitudes exceed.
// 2. One pass lists what exceeds it (and adds the gradient to the residual on the way).
// 3. Histograms over the list find the k-th magnitude, and the list is filtered.
// Where the sample misled (few distinct values, hidden clusters) the k-th magnitude comes from dense histograms.
#include <optional>
#include <string>

#include "select_rank.hpp"

namespace sparsewire {
namespace {

constexpr size_t kSmall = 4096;             // below, sampling costs more than it saves
constexpr size_t kPart = size_t{1} << 17;   // what is worth a thread
constexpr size_t kMaxPart = size_t{1} << 30;  // entries that an int32 offset counts safely

template <class T>
struct Workspace {
  Scratch<int32_t> indices;
  Scratch<T> values, sampled, resampled, rest;
};

template <class T>
Workspace<T>& workspace() {
  thread_local Workspace<T> space;
  return space;
}

const Scans& scans() {
#if defined(__x86_64__)
  if (isa() == Isa::avx512) return avx512_scans;
  if (isa() == Isa::avx2) return avx2_scans;
#endif
  return plain_scans;
}

template <class T>
Scan<T> scan(bool add) {
  if constexpr (sizeof(T) == 4) return add ? scans().add_float : scans().list_float;
  if constexpr (sizeof(T) == 8) return add ? scans().add_double : scans().list_double;
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

// The array to select from: x, or once added, the residual.
template <class T>
struct Dense {
  T* residual;
  const T* x;
  size_t size;
  int threads;
  bool pending;  // x has not been added to the residual yet

  const T* source() const { return residual ? residual : x; }
};

// Lists a part until there are more than `capacity` hits; a pending addition goes on to the end.
template <class T>
void fill(const Dense<T>& dense, Bits<T> floor, size_t capacity, Part<T>& part) {
  const Scan<T> list = scan<T>(dense.pending);
  const T* x = dense.pending ? dense.x : dense.source();
  T* residual = dense.pending ? dense.residual : const_cast<T*>(x);
  for (size_t at = part.base; at < part.end && (part.complete || dense.pending); at += kBlock<T>) {
    part.size += list(residual + at, x + at, std::min(kBlock<T>, part.end - at), static_cast<int32_t>(at - part.base),
                      floor, part.indices + part.size, part.values + part.size);
    if (part.size <= capacity) continue;
    part.complete = false;
    part.size = 0;
    floor = kMaxBits<T>;
  }
}

template <class T>
Hits<T> collect(Dense<T>& dense, Bits<T> floor, size_t capacity) {
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
  dense.pending = false;
  for (const auto& part : hits.parts) hits.size += part.size, hits.complete &= part.complete;
  return hits;
}

template <class T, class Index>
class Chosen {
 public:
  // One more than asked for, as the filter writes before it knows whether to keep.
  explicit Chosen(size_t size) : indices_(size + 1), values_(size + 1), wanted_(size) {}
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
  void take(const int32_t* indices, const T* values, size_t n, size_t base, Bits<T> floor) {
    size_t size = size_;
    for (size_t i = 0; i < n && size < wanted_; ++i) {
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
  const T* x = dense.source();
  const Bits<T> floor = edge.ties ? edge.bits - 1 : edge.bits;
  size_t at = 0;
  for (; at < dense.size && !out.full() && !(only_ties && edge.ties == 0); at += kBlock<T>) {
    const size_t n = std::min(kBlock<T>, dense.size - at);
    const size_t size = scan<T>(false)(const_cast<T*>(x) + at, x + at, n, 0, floor, indices, values);
    out.take(indices, values, size, at, edge);
  }
  return at;
}

template <class T, class Index>
void take_exact(const Dense<T>& dense, size_t k, Chosen<T, Index>& out) {
  Edge<T> edge = select_dense(dense.source(), dense.size, k, workspace<T>().rest);
  take_dense(dense, edge, false, out);
}

template <class T, class Index>
void take_all(const Hits<T>& hits, Edge<T> edge, Chosen<T, Index>& out) {
  for (const auto& part : hits.parts) out.take(part.indices, part.values, part.size, part.base, edge);
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
  const size_t few = sample<T>(nullptr, sampled, size, workspace<T>().resampled, again);
  const double expected = static_cast<double>(rank) * static_cast<double>(few) / static_cast<double>(size);
  const size_t few_rank = std::min(few, static_cast<size_t>(expected + 4 * (std::sqrt(expected) + 1)));
  const Bits<T> floor = select_dense(again, few, few_rank, workspace<T>().rest).bits - 1;
  Dense<T> dense{nullptr, sampled, size, 1, false};
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
  return {low, high, common, 2 * static_cast<size_t>(static_cast<double>(low_rank) / share) + kSmall};
}

// Gathers the magnitudes in the range.
template <class T>
size_t keep(const Hits<T>& hits, Bits<T> low, Bits<T> high, T* out) {
  size_t size = 0;
  for (const auto& part : hits.parts)
    size += keep(part.values, part.size, low, high, out + size, hits.size - size);
  return size;
}

template <class T, class Index>
void take_largest(const Hits<T>& hits, const Bracket<T>& bracket, size_t k, Chosen<T, Index>& out) {
  T* rest = workspace<T>().rest.take(hits.size);
  Range<T> range{bracket.floor() + 1, bracket.high, k};
  size_t size = keep(hits, range.low, range.high, rest);
  const size_t above = hits.size - size;
  if (above < k) {
    range.rank -= above;
  } else {
    range = {bracket.high + 1, kMaxBits<T>, k};
    size = keep(hits, range.low, range.high, rest);
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
bool take_sampled(Dense<T>& dense, size_t k, Chosen<T, Index>& out) {
  T* sampled;
  const size_t size = sample(dense.residual, dense.x, dense.size, workspace<T>().sampled, sampled);
  for (const double margin : {5.0, 30.0}) {
    const Bracket<T> edges = bracket(sampled, size, dense.size, k, margin);
    const Hits<T> hits = collect(dense, edges.floor(), edges.capacity);
    if (!hits.complete) return false;
    if (hits.size >= k) return take_largest(hits, edges, k, out), true;
    // A common value was left out of the list: its first occurrences are easily found again.
    if (edges.common && take_with_ties(dense, hits, {edges.low, k - hits.size}, out)) return true;
    out.clear();
  }
  return false;
}

template <class T, class Index>
void take_topk(Dense<T>& dense, size_t k, Chosen<T, Index>& out) {
  const bool sampling = dense.size >= kSmall && k <= dense.size / 8 && k > 0;
  if (sampling && take_sampled(dense, k, out)) return;
  if (dense.pending) collect(dense, kMaxBits<T>, 0);
  if (k > 0) take_exact(dense, k, out);
}

template <class T, class Index>
nb::object topk_of(Dense<T> dense, size_t k) {
  Chosen<T, Index> out(k);
  {
    nb::gil_scoped_release release;
    take_topk(dense, k, out);
  }
  return out.release();
}

template <class T>
nb::object topk_of(Dense<T> dense, int64_t k) {
  if (k < 0 || static_cast<size_t>(k) > dense.size)
    throw std::invalid_argument("k must lie in 0…" + std::to_string(dense.size) + ", not " + std::to_string(k));
  const bool narrow = dense.size <= size_t{1} << 31;
  return narrow ? topk_of<T, int32_t>(dense, static_cast<size_t>(k)) : topk_of<T, int64_t>(dense, static_cast<size_t>(k));
}

template <class T>
nb::object topk(const In<T>& x, int64_t k, int threads) {
  return topk_of(Dense<T>{nullptr, x.data(), x.size(), threads, false}, k);
}

template <class T>
nb::object topk_add(const InOut<T>& residual, const In<T>& x, int64_t k, int threads) {
  require(residual.size() == x.size(), "the residual and x differ in size");
  return topk_of(Dense<T>{residual.data(), x.data(), x.size(), threads, true}, k);
}

// How many hits to make room for; 0 if there may be so many that two passes are cheaper than the room.
template <class T>
size_t expect(const Dense<T>& dense, Bits<T> floor) {
  if (dense.size < kSmall) return dense.size;
  T* sampled;
  const size_t size = sample<T>(nullptr, dense.x, dense.size, workspace<T>().sampled, sampled);
  const size_t hits = count_above(sampled, size, floor);
  return hits > size / 8 ? 0 : dense.size / size * hits * 3 / 2 + dense.size / 64 + kSmall;
}

template <class T, class Index>
nb::object threshold_of(Dense<T> dense, Bits<T> floor) {
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
nb::object threshold(const In<T>& x, double low, int threads) {
  if (!(low >= 0)) throw std::invalid_argument("a threshold is a number ≥ 0, not " + std::to_string(low));
  const Dense<T> dense{nullptr, x.data(), x.size(), threads, false};
  const Bits<T> floor = magnitude(static_cast<T>(low)) - 1;
  const bool narrow = dense.size <= size_t{1} << 31;
  return narrow ? threshold_of<T, int32_t>(dense, floor) : threshold_of<T, int64_t>(dense, floor);
}

template <class T>
uint64_t read(const In<T>& x) {
  nb::gil_scoped_release release;
  return scans().read(reinterpret_cast<const char*>(x.data()), x.size() * sizeof(T));
}

template <class T>
void bind(nb::module_& m) {
  using nb::arg;
  m.def("topk", &topk<T>, arg("x").noconvert(), arg("k"), arg("threads") = 1);
  m.def("topk_add", &topk_add<T>, arg("residual").noconvert(), arg("x").noconvert(), arg("k"), arg("threads") = 1);
  m.def("threshold", &threshold<T>, arg("x").noconvert(), arg("low"), arg("threads") = 1);
  m.def("read", &read<T>, arg("x").noconvert());
}

const Binder binder([](nb::module_& m) {
  bind<float>(m);
  bind<double>(m);
});

}  // namespace
}  // namespace sparsewire
