// The largest entries of every chunk.
//
// A chunk is scanned for what exceeds the edge of the chunk before, less a margin; where fewer than k do, for all that is
// not zero. The k-th magnitude of the list is then exact.
#include <functional>

#include "select_take.hpp"

namespace sparsewire {
namespace {

constexpr int64_t kMostChunk = int64_t{1} << 30;
template <class T>
constexpr Bits<T> kMargin = Bits<T>{1} << (sizeof(T) == 4 ? 20 : 49);  // an eighth of an octave

constexpr size_t kFew = 512;

struct Plan {
  size_t size, k, chunk;

  size_t chunks() const { return size / chunk + (size % chunk != 0); }
  size_t length(size_t i) const { return std::min(chunk, size - i * chunk); }
  size_t count(size_t i) const { return (k * length(i) + chunk - 1) / chunk; }
  size_t total() const { return size / chunk * k + (size % chunk ? count(size / chunk) : 0); }
};

// What a thread needs for one chunk.
template <class T>
struct Desk {
  explicit Desk(size_t chunk) : indices(chunk + kBlock<T> + kSlack), values(indices.size()), rest(chunk + kVector) {}
  std::vector<int32_t> indices;
  std::vector<T> values, rest;
  Bits<T> guess = 0;
};

template <class T>
size_t list_chunk(const Dense<T>& dense, size_t begin, size_t n, Bits<T> floor, Desk<T>& desk) {
  const Scan<T> list = passes<T>().scan[static_cast<int>(mode_of(dense.terms))];
  const Cut<T> cut(floor);
  size_t size = 0;
  for (size_t at = 0; at < n; at += kBlock<T>)
    size += list(dense.terms.from(begin + at), dense.x + begin + at, std::min(kBlock<T>, n - at),
                 static_cast<int32_t>(at), cut, desk.indices.data() + size, desk.values.data() + size);
  return size;
}

// Sorting is faster than histograms where there is little to sort.
template <class T>
Edge<T> edge_of_few(const T* values, size_t n, size_t k) {
  Bits<T> order[kFew];
  for (size_t i = 0; i < n; ++i) order[i] = magnitude(values[i]);
  std::nth_element(order, order + k - 1, order + n, std::greater<>());
  const Bits<T> edge = order[k - 1];
  return {edge, k - std::count_if(order, order + k, [=](Bits<T> bits) { return bits > edge; })};
}

template <class T>
Edge<T> edge_of(const T* values, size_t n, size_t k, T* rest) {
  if (n <= kFew) return edge_of_few(values, n, k);
  Range<T> range;
  range.rank = k;
  return select_within(rest, keep_listed<T>(values, n, 0, kMaxBits<T>, rest), range);
}

// Lists at least the k largest of a chunk and finds the edge.
template <class T>
Edge<T> list_largest(const Dense<T>& dense, size_t begin, size_t n, size_t k, Desk<T>& desk) {
  size_t size = list_chunk(dense, begin, n, desk.guess, desk);
  if (size < k && desk.guess > 0) size = list_chunk<T>(dense, begin, n, 0, desk);
  desk.guess = 0;
  if (size < k) {  // zeros fill up
    list_chunk<T>(dense, begin, n, -1, desk);
    return {0, k - size};
  }
  const Edge<T> edge = edge_of(desk.values.data(), size, k, desk.rest.data());
  desk.guess = std::max<Bits<T>>(0, edge.bits - kMargin<T>);
  return edge;
}

template <class T, class Index>
void take_chunk(const Dense<T>& dense, size_t begin, size_t n, size_t k, Desk<T>& desk, Index* indices, T* out) {
  Edge<T> edge = list_largest(dense, begin, n, k, desk);
  const T* values = desk.values.data();
  for (size_t i = 0, taken = 0; taken < k; ++i) {
    const Bits<T> bits = magnitude(values[i]);
    const bool tied = bits == edge.bits && edge.ties > 0;
    indices[taken] = static_cast<Index>(begin + desk.indices[i]);
    out[taken] = values[i];
    taken += bits > edge.bits || tied;
    edge.ties -= tied;
  }
}

template <class T, class Index>
nb::object choose(const Dense<T>& dense, const Plan& plan) {
  Buffer<Index> indices(plan.total());
  Buffer<T> values(plan.total());
  const size_t threads = std::clamp<size_t>(plan.size / kPart, 1, std::max(1, dense.threads));
  std::vector<Desk<T>> desks(threads, Desk<T>(std::min(plan.chunk, plan.size)));
  {
    nb::gil_scoped_release release;
    const size_t share = (plan.chunks() + threads - 1) / threads;
    parallel(static_cast<int>(threads), [&](int thread) {
      for (size_t i = thread * share; i < std::min(plan.chunks(), (thread + 1) * share); ++i)
        take_chunk(dense, i * plan.chunk, plan.length(i), plan.count(i), desks[thread],
                   indices.data() + i * plan.k, values.data() + i * plan.k);
    });
  }
  auto first = nb::cast(indices.release());
  return nb::make_tuple(first, nb::cast(values.release()));
}

template <class T>
nb::object chunk_topk_of(const Dense<T>& dense, int64_t k, int64_t chunk) {
  require(1 <= k && k <= chunk && chunk <= kMostChunk, "a chunk has 1 … 2**30 elements, of which at least 1 is taken");
  const Plan plan{dense.size, static_cast<size_t>(k), static_cast<size_t>(chunk)};
  return fits_int32(dense.size) ? choose<T, int32_t>(dense, plan) : choose<T, int64_t>(dense, plan);
}

template <class T>
nb::object chunk_topk(const In<T>& x, int64_t k, int64_t chunk, int threads) {
  return chunk_topk_of(Dense<T>{x.data(), x.size(), threads}, k, chunk);
}

template <class T>
nb::object chunk_topk_sum(const In<T>& residual, const In<T>& x, int64_t k, int64_t chunk, double decay,
                          double gain, int threads) {
  const Terms<T> terms = terms_of(residual, x, decay, gain);
  return chunk_topk_of(Dense<T>{x.data(), x.size(), threads, terms}, k, chunk);
}

template <class T>
void bind(nb::module_& m) {
  using nb::arg;
  m.def("chunk_topk", &chunk_topk<T>, arg("x").noconvert(), arg("k"), arg("chunk"), arg("threads") = 1);
  m.def("chunk_topk_sum", &chunk_topk_sum<T>, arg("residual").noconvert(), arg("x").noconvert(), arg("k"), arg("chunk"),
        arg("decay") = 1.0, arg("gain") = 1.0, arg("threads") = 1);
}

const Binder binder([](nb::module_& m) {
  bind<float>(m);
  bind<double>(m);
});

}  // namespace
}  // namespace sparsewire
