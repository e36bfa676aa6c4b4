// How often symbols come, in few bits each: weights in steps of a whole, half or quarter octave.
#include "deltas.hpp"
#include "lattice.hpp"

namespace sparsewire {
namespace {

constexpr int64_t kTotal = 4096;
constexpr size_t kOctaves = 12;

// Weights of steps 1 … size − 1; step 0 is for what does not come.
struct Ladder {
  int64_t weights[4 * kOctaves + 2] = {};
  size_t size;

  explicit Ladder(int64_t resolution) {
    require(resolution >= 0 && resolution <= 2, "a table of frequencies is out of range");
    constexpr int64_t kQuarters[] = {16, 19, 23, 27};
    size = (kOctaves << resolution) + 2;
    for (size_t step = 1; step < size; ++step) {
      const size_t quarter = (step - 1) << (2 - resolution);
      weights[step] = kQuarters[quarter % 4] << (quarter / 4);
    }
  }

  // The nearest step to a share of the top weight.
  size_t step_of(int64_t count, int64_t most) const {
    if (!count) return 0;
    const int64_t ideal = count * weights[size - 1] / most;
    size_t step = 1;
    while (step + 1 < size && ideal >= (weights[step] + weights[step + 1]) / 2) ++step;
    return step;
  }
};

// In proportion to the weights, rounded down, at least 1; the first of the largest takes the rest.
Out<uint32_t> to_frequencies(const int64_t* weights, size_t count) {
  int64_t sum = 0, left = kTotal;
  for (size_t i = 0; i < count; ++i) sum += weights[i];
  require(sum > 0, "a table of frequencies is empty");
  Buffer<uint32_t> out(count);
  for (size_t i = 0; i < count; ++i) {
    const int64_t share = weights[i] ? std::max<int64_t>(1, weights[i] * kTotal / sum) : 0;
    out.data()[i] = static_cast<uint32_t>(share);
    left -= share;
  }
  const size_t largest = static_cast<size_t>(std::max_element(weights, weights + count) - weights);
  left += out.data()[largest];
  require(left >= 1, "a table of frequencies leaves nothing for the largest");
  out.data()[largest] = static_cast<uint32_t>(left);
  return out.release();
}

auto ladder_encode(In<int64_t> counts, int64_t resolution) {
  const Ladder ladder(resolution);
  const size_t size = counts.size();
  require(size && size <= kMostSymbols, "counts are out of range");
  const auto [least, most] = std::minmax_element(counts.data(), counts.data() + size);
  require(*least >= 0 && *most > 0 && *most <= kMostValues, "counts are out of range");
  int64_t weights[kMostSymbols];
  uint8_t sent[kMostSymbols];
  size_t symbols = 0;
  for (size_t i = 0; i < size; ++i) {
    const size_t step = ladder.step_of(counts.data()[i], *most);
    weights[i] = ladder.weights[step];
    if (i > 1 || step) sent[symbols++] = static_cast<uint8_t>(ladder.size - 1 - step);
  }
  auto table = write_deltas(sent, symbols);
  return std::make_pair(std::move(table), to_frequencies(weights, size));
}

Out<uint32_t> ladder_decode(In<uint8_t> table, int64_t symbols, int64_t outside, int64_t resolution) {
  const Ladder ladder(resolution);
  require(outside >= 0 && outside < 4, "a table of frequencies is out of range");
  const int64_t here = (outside & 1) + (outside >> 1), most = static_cast<int64_t>(kMostSymbols);
  require(here <= symbols && symbols <= most - 2 + here, "a table of frequencies is too short or too long");
  uint8_t down[kMostSymbols];
  read_deltas(table.data(), table.size(), down, static_cast<size_t>(symbols));
  int64_t weights[kMostSymbols] = {};
  size_t place = 0;
  for (size_t i = 0; i < static_cast<size_t>(symbols); ++i, ++place) {
    require(down[i] < ladder.size, "a table of frequencies is out of range");
    while (place < 2 && !(outside >> place & 1)) ++place;
    weights[place] = ladder.weights[ladder.size - 1 - down[i]];
  }
  return to_frequencies(weights, static_cast<size_t>(symbols + 2 - here));
}

const Binder binder([](nb::module_& m) {
  m.def("ladder_encode", &ladder_encode, nb::arg("counts").noconvert(), nb::arg("resolution"));
  m.def("ladder_decode", &ladder_decode, nb::arg("table").noconvert(), nb::arg("symbols"), nb::arg("outside"),
        nb::arg("resolution"));
});

}  // namespace
}  // namespace sparsewire
