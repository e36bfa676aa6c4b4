// What a memory keeps: one pass updates residual and velocity, block by block, and takes off what was sent.
#include <optional>

#include "entries.hpp"
#include "select_collect.hpp"

namespace sparsewire {
namespace {

template <class T>
constexpr size_t kUpdated = 16384 / sizeof(T);  // entries of a block: with its gradient it fits the first cache
template <class T>
constexpr size_t kMoved = 2048 / sizeof(T);  // with a velocity: five arrays

template <class T>
struct Kept {
  T *residual, *velocity;
  T decay, gain, momentum, lead;
  bool mask;
};

template <class T, class Index>
struct Entries {
  const Index* indices;
  const T* values;
  size_t size;
};

// Without a velocity: entries are taken off while their block is in cache.
template <class T, class Index>
void keep_residual(const Kept<T>& kept, const T* x, size_t begin, size_t end, const Entries<T, Index>& sent) {
  size_t entry = first_from(sent.indices, sent.size, begin);
  each_block(kept.residual, begin, end, kUpdated<T>, [&](size_t at, size_t stop) {
    passes<T>().advance(kept.residual + at, nullptr, kept.decay, kept.gain, {}, x + at, stop - at);
    for (; entry < sent.size && static_cast<size_t>(sent.indices[entry]) < stop; ++entry)
      kept.residual[sent.indices[entry]] -= sent.values[entry];
  });
}

// With one: what lead · velocity is depends on whether an entry was sent, so its block is told beforehand.
template <class T, class Index>
void keep_both(const Kept<T>& kept, const T* x, size_t begin, size_t end, const Entries<T, Index>& sent) {
  alignas(64) T values[kMoved<T>] = {};
  alignas(64) Bits<T> moving[kMoved<T>];
  std::fill_n(moving, kMoved<T>, -1);
  const Motion<T> motion{kept.momentum, kept.lead, values, moving};
  size_t first = first_from(sent.indices, sent.size, begin), last = first;
  each_block(kept.residual, begin, end, kMoved<T>, [&](size_t at, size_t stop) {
    for (; last < sent.size && static_cast<size_t>(sent.indices[last]) < stop; ++last) {
      values[sent.indices[last] - at] = sent.values[last];
      moving[sent.indices[last] - at] = kept.mask ? 0 : -1;
    }
    passes<T>().advance(kept.residual + at, kept.velocity + at, kept.decay, kept.gain, motion, x + at, stop - at);
    for (; first < last; ++first) {
      values[sent.indices[first] - at] = 0;
      moving[sent.indices[first] - at] = -1;
    }
  });
}

template <class T, class Index>
void compensate(const InOut<T>& residual, const In<T>& x, const In<Index>& indices, const In<T>& sent, double decay,
                double gain, std::optional<InOut<T>> velocity, double momentum, double lead, bool mask, int threads) {
  const size_t size = x.size(), n = indices.size();
  const Kept<T> kept{residual.data(),          velocity ? velocity->data() : nullptr,
                     static_cast<T>(decay),    static_cast<T>(gain),
                     static_cast<T>(momentum), static_cast<T>(lead),
                     mask};
  const Entries<T, Index> entries{indices.data(), sent.data(), n};
  nb::gil_scoped_release release;
  require(residual.size() == size, "the residual and x differ in size");
  require(!velocity || velocity->size() == size, "the velocity and x differ in size");
  require(n == sent.size() && fits(indices.data(), n, size),
          "the sent entries' indices must ascend and lie within x, one for each value");
  const size_t workers = std::clamp<size_t>(size / kWorker, 1, std::max(1, threads));
  const size_t length = (size / kUpdated<T> / workers + 1) * kUpdated<T>;
  parallel(static_cast<int>(workers), [&](int worker) {
    const size_t begin = std::min(size, worker * length), end = std::min(size, begin + length);
    velocity ? keep_both(kept, x.data(), begin, end, entries) : keep_residual(kept, x.data(), begin, end, entries);
  });
}

template <class T, class Index>
void bind(nb::module_& m) {
  using nb::arg;
  m.def("compensate", &compensate<T, Index>, arg("residual").noconvert(), arg("x").noconvert(),
        arg("indices").noconvert(), arg("sent").noconvert(), arg("decay") = 1.0, arg("gain") = 1.0,
        arg("velocity").noconvert() = nb::none(), arg("momentum") = 0.0, arg("lead") = 0.0, arg("mask") = false,
        arg("threads") = 1);
}

const Binder binder([](nb::module_& m) {
  bind<float, int32_t>(m);
  bind<float, int64_t>(m);
  bind<double, int32_t>(m);
  bind<double, int64_t>(m);
});

}  // namespace
}  // namespace sparsewire
