// What a memory keeps that takes back a share of the mean, and how much of its energy was sent: one pass, block by block.
#include <cmath>
#include <limits>

#include "parts.hpp"
#include "select_collect.hpp"

namespace sparsewire {
namespace {

template <class T>
constexpr size_t kMeasured = 2048 / sizeof(T);  // entries whose squares are added up before they join the sum

template <class T>
constexpr size_t kAdded = 256 * kMeasured<T>;  // entries to which parts are added while they are in cache

struct Energy {
  double total = 0, sent = 0;
};

// What is no number is infinite.
double or_infinite(double energy) { return std::isfinite(energy) ? energy : std::numeric_limits<double>::infinity(); }

// Runs f(begin, end, worker) on as many neighbouring ranges of whole blocks as there are workers.
template <class T, class F>
void each_range(size_t size, size_t workers, F&& f) {
  const size_t length = (size / kMeasured<T> / workers + 1) * kMeasured<T>;
  parallel(static_cast<int>(workers), [&](int worker) {
    const size_t begin = std::min(size, worker * length);
    f(begin, std::min(size, begin + length), static_cast<size_t>(worker));
  });
}

size_t workers_for(size_t size, int threads) { return std::clamp<size_t>(size / kWorker, 1, std::max(1, threads)); }

template <class T, class Index>
struct Sent {
  const Index* indices;
  const T* values;
  size_t size;

  // Takes the entries below `end` off, from `entry` on; the energy that was there.
  double take_off(T* residual, size_t end, size_t& entry) const {
    double energy = 0;
    for (; entry < size && static_cast<size_t>(indices[entry]) < end; ++entry) {
      const double before = residual[indices[entry]];
      energy += before * before;
      residual[indices[entry]] -= values[entry];
    }
    return energy;
  }
};

template <class T, class Index>
std::pair<double, double> compensate_mean(const InOut<T>& residual, const In<T>& x, const In<Index>& indices,
                                          const In<T>& sent, const nb::sequence& list, double scale, int threads) {
  const std::vector<AnyPart<T>> parts = to_parts<T>(list);
  const Sent<T, Index> own{indices.data(), sent.data(), indices.size()};
  const size_t size = x.size(), workers = workers_for(size, threads);
  nb::gil_scoped_release release;
  require(residual.size() == size, "the residual and x differ in size");
  require(own.size == sent.size() && fits(own.indices, own.size, size),
          "the sent entries' indices must ascend and lie within x, one for each value");
  require_parts(parts, size);
  std::vector<Energy> blocks(size / kMeasured<T> + 1);
  std::vector<size_t> cursors(workers * parts.size());
  each_range<T>(size, workers, [&](size_t begin, size_t end, size_t worker) {
    T* kept = residual.data();
    size_t *at_part = cursors.data() + worker * parts.size(), entry = first_from(own.indices, own.size, begin);
    seek_parts(parts, begin, at_part);
    for (size_t from = begin; from < end; from += kAdded<T>) {
      const size_t to = std::min(end, from + kAdded<T>);
      for (size_t at = from; at < to; at += kMeasured<T>) {
        const size_t stop = std::min(to, at + kMeasured<T>);
        Energy& block = blocks[at / kMeasured<T>];
        block.total = passes<T>().squares(kept + at, x.data() + at, stop - at);
        block.sent = own.take_off(kept, stop, entry);
      }
      add_parts(kept + from, from, to, parts, static_cast<T>(scale), at_part);
    }
  });
  Energy all;
  for (const Energy& block : blocks) all.total += block.total, all.sent += block.sent;
  return {or_infinite(all.total), or_infinite(all.sent)};
}

template <class T>
double energy(const In<T>& x, int threads) {
  const size_t size = x.size();
  nb::gil_scoped_release release;
  std::vector<double> blocks(size / kMeasured<T> + 1);
  T* read = const_cast<T*>(x.data());
  each_range<T>(size, workers_for(size, threads), [&](size_t begin, size_t end, size_t) {
    for (size_t at = begin; at < end; at += kMeasured<T>)
      blocks[at / kMeasured<T>] = passes<T>().squares(read + at, nullptr, std::min(kMeasured<T>, end - at));
  });
  double all = 0;
  for (double block : blocks) all += block;
  return or_infinite(all);
}

template <class T, class Index>
void bind(nb::module_& m) {
  using nb::arg;
  m.def("compensate_mean", &compensate_mean<T, Index>, arg("residual").noconvert(), arg("x").noconvert(),
        arg("indices").noconvert(), arg("sent").noconvert(), arg("parts"), arg("scale"), arg("threads") = 1);
}

const Binder binder([](nb::module_& m) {
  bind<float, int32_t>(m);
  bind<float, int64_t>(m);
  bind<double, int32_t>(m);
  bind<double, int64_t>(m);
  m.def("energy", &energy<float>, nb::arg("x").noconvert(), nb::arg("threads") = 1);
  m.def("energy", &energy<double>, nb::arg("x").noconvert(), nb::arg("threads") = 1);
});

}  // namespace
}  // namespace sparsewire
