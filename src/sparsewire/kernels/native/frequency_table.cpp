// Frequency tables for rANS in few bits: a log-scale weight for each symbol, a whole, half or quarter octave apart.
#include "deltas.hpp"
#include "quantizer.hpp"

namespace sparsewire {
namespace {

constexpr int64_t kTotal = 4096;
constexpr size_t kOctaves = 12;

// Weights, ascending; number 0 is for a symbol that does not occur.
struct Weights {
  int64_t of[4 * kOctaves + 2] = {};
  size_t size;

  explicit Weights(int64_t resolution) {
    require(resolution >= 0 && resolution <= 2, "a frequency table is out of range");
    constexpr int64_t kQuarters[] = {16, 19, 23, 27};
    size = (kOctaves << resolution) + 2;
    for (size_t number = 1; number < size; ++number) {
      const size_t quarter = (number - 1) << (2 - resolution);
      of[number] = kQuarters[quarter % 4] << (quarter / 4);
    }
  }

  // The number of the weight nearest to count / most of the largest.
  size_t number_of(int64_t count, int64_t most) const {
    if (!count) return 0;
    const int64_t ideal = count * of[size - 1] / most;
    size_t number = 1;
    while (number + 1 < size && ideal >= (of[number] + of[number + 1]) / 2) ++number;
    return number;
  }
};

// In proportion to the weights, rounded down, at least 1; the first of the largest takes the rest.
Out<uint32_t> normalized(const int64_t* weights, size_t count) {
  int64_t sum = 0, left = kTotal;
  for (size_t i = 0; i < count; ++i) sum += weights[i];
  require(sum > 0, "a frequency table is empty");
  Buffer<uint32_t> out(count);
  for (size_t i = 0; i < count; ++i) {
    const int64_t share = weights[i] ? std::max<int64_t>(1, weights[i] * kTotal / sum) : 0;
    out.data()[i] = static_cast<uint32_t>(share);
    left -= share;
  }
  const size_t largest = static_cast<size_t>(std::max_element(weights, weights + count) - weights);
  left += out.data()[largest];
  require(left >= 1, "a frequency table leaves nothing for the largest");
  out.data()[largest] = static_cast<uint32_t>(left);
  return out.release();
}

auto frequency_table_encode(In<int64_t> counts, int64_t resolution) {
  const Weights weights(resolution);
  const size_t size = counts.size();
  require(size && size <= kMostSymbols, "counts are out of range");
  const auto [least, most] = std::minmax_element(counts.data(), counts.data() + size);
  require(*least >= 0 && *most > 0 && *most <= kMostValues, "counts are out of range");
  int64_t found[kMostSymbols];
  uint8_t sent[kMostSymbols];
  size_t symbols = 0;
  for (size_t i = 0; i < size; ++i) {
    const size_t number = weights.number_of(counts.data()[i], *most);
    found[i] = weights.of[number];
    if (i > 1 || number) sent[symbols++] = static_cast<uint8_t>(weights.size - 1 - number);
  }
  auto table = write_deltas(sent, symbols);
  return std::make_pair(std::move(table), normalized(found, size));
}

Out<uint32_t> frequency_table_decode(In<uint8_t> table, int64_t symbols, int64_t outside, int64_t resolution) {
  const Weights weights(resolution);
  require(outside >= 0 && outside < 4, "a frequency table is out of range");
  const int64_t here = (outside & 1) + (outside >> 1), most = static_cast<int64_t>(kMostSymbols);
  require(here <= symbols && symbols <= most - 2 + here, "a frequency table is too short or too long");
  uint8_t down[kMostSymbols];
  read_deltas(table.data(), table.size(), down, static_cast<size_t>(symbols));
  int64_t found[kMostSymbols] = {};
  size_t place = 0;
  for (size_t i = 0; i < static_cast<size_t>(symbols); ++i, ++place) {
    require(down[i] < weights.size, "a frequency table is out of range");
    while (place < 2 && !(outside >> place & 1)) ++place;
    found[place] = weights.of[weights.size - 1 - down[i]];
  }
  return normalized(found, static_cast<size_t>(symbols + 2 - here));
}

const Binder binder([](nb::module_& m) {
  m.def("frequency_table_encode", &frequency_table_encode, nb::arg("counts").noconvert(), nb::arg("resolution"));
  m.def("frequency_table_decode", &frequency_table_decode, nb::arg("table").noconvert(), nb::arg("symbols"),
        nb::arg("outside"), nb::arg("resolution"));
});

}  // namespace
}  // namespace sparsewire
