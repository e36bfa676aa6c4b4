// Exact selection of the largest entries, and of all that reach a magnitude.
#include "bitio.hpp"
#include "select_take.hpp"

namespace sparsewire {
namespace {

// The magnitude of the k-th entry of an earlier selection, which this one overwrites with its own.
using Remembered = std::optional<InOut<int64_t>>;

template <class T>
Bits<T> recall(const Remembered& remembered) {
  require(!remembered || remembered->size() == 1, "one edge is remembered");
  return remembered ? static_cast<Bits<T>>(std::clamp<int64_t>(*remembered->data(), 0, kMaxBits<T>)) : 0;
}

template <class T>
Bits<T> least(const T* values, size_t n) {
  return fastest([=](auto) SPARSEWIRE_FLATTEN {
    Bits<T> bits = n ? kMaxBits<T> : 0;
    for (size_t i = 0; i < n; ++i) bits = std::min(bits, magnitude(values[i]));
    return bits;
  });
}

template <class T, class Index>
nb::object choose(const Dense<T>& dense, size_t k, const Remembered& remembered) {
  Bits<T> edge = recall<T>(remembered);
  Chosen<T, Index> out(k);
  {
    nb::gil_scoped_release release;
    take_topk(dense, k, out, edge);
    if (remembered) edge = least(out.values(), out.size());
  }
  if (remembered) *remembered->data() = edge;
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
nb::object choose_from(const Dense<T>& dense, size_t k, Bits<T> floor, const Remembered& remembered) {
  return floor < 0 ? choose<T, Index>(dense, k, remembered) : choose_above<T, Index>(dense, k, floor);
}

template <class T>
Bits<T> floor_of(int64_t edge) {
  require(edge >= 0 && edge <= kInfinity<T>, "an edge is the bits of no magnitude");
  return static_cast<Bits<T>>(edge) - 1;
}

template <class T>
nb::object topk_of(const Dense<T>& dense, int64_t k, int64_t edge, const Remembered& remembered) {
  const Bits<T> floor = floor_of<T>(edge);
  check_count(k, dense.size);
  return fits_int32(dense.size) ? choose_from<T, int32_t>(dense, k, floor, remembered)
                                : choose_from<T, int64_t>(dense, k, floor, remembered);
}

template <class T>
nb::object topk(const In<T>& x, int64_t k, int64_t edge, int threads) {
  return topk_of(Dense<T>{x.data(), x.size(), threads}, k, edge, {});
}

template <class T>
nb::object topk_sum(const In<T>& residual, const In<T>& x, int64_t k, double decay, double gain, int64_t edge,
                    const Remembered& remembered, int threads) {
  return topk_of(Dense<T>{x.data(), x.size(), threads, terms_of(residual, x, decay, gain)}, k, edge, remembered);
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
        arg("gain") = 1.0, arg("edge") = 0, arg("remembered").noconvert() = nb::none(), arg("threads") = 1);
  m.def("threshold", &threshold<T>, arg("x").noconvert(), arg("edge"), arg("threads") = 1);
  m.def("read", &read<T>, arg("x").noconvert());
}

const Binder binder([](nb::module_& m) {
  bind<float>(m);
  bind<double>(m);
});

}  // namespace
}  // namespace sparsewire
