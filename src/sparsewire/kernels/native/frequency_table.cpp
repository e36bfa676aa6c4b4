// Frequency tables for rANS in few bits: log-scale weights 1, ½ or ¼ octave apart, or the exact frequencies.
#include "deltas.hpp"
#include "log2.hpp"
#include "quantizer.hpp"

namespace sparsewire {
namespace {

constexpr int64_t kTotal = 4096;
constexpr size_t kOctaves = 12;
constexpr int64_t kExact = 3;     // the resolution of a table of exact frequencies
constexpr int kMostLength = 13;   // the bits of 4096
constexpr size_t kMostBytes = 5;  // of an exact frequency in a table

// Which symbols a table lists: bits 0 and 1 of `outside` say whether the first two are among them.
struct Places {
  size_t symbols, size;

  Places(int64_t listed, int64_t outside) {
    require(outside >= 0 && outside < 4, "a frequency table is out of range");
    const int64_t here = (outside & 1) + (outside >> 1), most = static_cast<int64_t>(kMostSymbols);
    require(here <= listed && listed <= most - 2 + here, "a frequency table is too short or too long");
    symbols = static_cast<size_t>(listed);
    size = static_cast<size_t>(listed + 2 - here);
    absent_ = 2 - static_cast<size_t>(here);
    first_ = absent_ == 1 ? outside == 2 : absent_;
  }

  // The symbol that is listed at place i.
  size_t of(size_t i) const { return i ? i + absent_ : first_; }

 private:
  size_t absent_, first_;
};

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

// --- exact frequencies -------------------------------------------------------------------------------------------

// Each as the change of its bit length, zigzag-coded in unary, and the bits below its leading one.
Out<uint8_t> write_exact(const uint32_t* frequencies, size_t count) {
  Buffer<uint8_t> out(kMostBytes * count + BitWriter::kSlack);
  BitWriter writer(out.data());
  int before = 0;
  for (size_t i = 0; i < count; ++i) {
    const unsigned length = bit_length(frequencies[i]), below = length ? length - 1 : 0;
    const int down = kMostLength - static_cast<int>(length);
    const unsigned zeros = zigzag(down - before);
    const uint64_t mantissa = frequencies[i] & low_mask(below);
    writer.append(uint64_t{1} << zeros | mantissa << (zeros + 1), zeros + 1 + below);
    before = down;
  }
  return out.release(writer.bytes());
}

Out<uint32_t> read_exact(const uint8_t* data, size_t size, const Places& places) {
  constexpr unsigned kWidest = 40;  // of a frequency's code, rounded up
  require(size <= kMostBytes * places.symbols, "a frequency table is too long");
  Buffer<uint32_t> out(places.size);
  std::fill_n(out.data(), places.size, 0u);
  uint64_t bit = 0, sum = 0;
  int down = 0;
  for (size_t i = 0; i < places.symbols; ++i) {
    const uint64_t word = bit < 8 * size ? peek(data, size, bit, kWidest) : 0;
    require(word, "a frequency is out of range");
    const unsigned zeros = static_cast<unsigned>(__builtin_ctzll(word));
    down += unzigzag(zeros);
    require(down >= 0 && down <= kMostLength, "a frequency is out of range");
    const unsigned below = static_cast<unsigned>(std::max(0, kMostLength - 1 - down));
    const uint64_t mantissa = word >> (zeros + 1) & low_mask(below);
    const uint64_t frequency = down < kMostLength ? uint64_t{1} << below | mantissa : 0;
    out.data()[places.of(i)] = static_cast<uint32_t>(frequency);
    sum += frequency;
    bit += zeros + 1 + below;
  }
  require(sum == kTotal, "frequencies do not sum to 4096");
  require(bytes_of(bit) == size && (bit % 8 == 0 || data[size - 1] >> bit % 8 == 0), "a frequency table is too long");
  return out.release();
}

// --- tables of either kind ---------------------------------------------------------------------------------------

using Table = std::pair<Out<uint8_t>, Out<uint32_t>>;  // and the frequencies that its decoder finds

Table exact_table(const int64_t* counts, size_t size) {
  auto frequencies = normalized(counts, size);
  uint32_t listed[kMostSymbols];
  size_t symbols = 0;
  for (size_t i = 0; i < size; ++i)
    if (i > 1 || counts[i]) listed[symbols++] = frequencies.data()[i];
  auto table = write_exact(listed, symbols);
  return {std::move(table), std::move(frequencies)};
}

Table log_table(const int64_t* counts, size_t size, int64_t resolution) {
  const Weights weights(resolution);
  const int64_t most = *std::max_element(counts, counts + size);
  int64_t found[kMostSymbols];
  uint8_t listed[kMostSymbols];
  size_t symbols = 0;
  for (size_t i = 0; i < size; ++i) {
    const size_t number = weights.number_of(counts[i], most);
    found[i] = weights.of[number];
    if (i > 1 || number) listed[symbols++] = static_cast<uint8_t>(weights.size - 1 - number);
  }
  auto table = write_deltas(listed, symbols);
  return {std::move(table), normalized(found, size)};
}

Table frequency_table_encode(In<int64_t> counts, int64_t resolution) {
  const size_t size = counts.size();
  require(size && size <= kMostSymbols, "counts are out of range");
  int64_t total = 0;
  for (size_t i = 0; i < size; ++i) {
    require(counts.data()[i] >= 0 && counts.data()[i] <= kMostValues - total, "counts are out of range");
    total += counts.data()[i];
  }
  require(total, "counts are out of range");
  return resolution == kExact ? exact_table(counts.data(), size) : log_table(counts.data(), size, resolution);
}

// Of the table and, by its entropy, of the rANS stream, in 1/65536 of a bit.
int64_t cost_of(In<int64_t> counts, int64_t resolution) {
  const auto [table, frequencies] = frequency_table_encode(counts, resolution);
  int64_t cost = static_cast<int64_t>(8 * table.size()) << 16;
  for (size_t i = 0; i < counts.size(); ++i)
    if (counts.data()[i]) cost += counts.data()[i] * ((int64_t{12} << 16) - log2_of(frequencies.data()[i]));
  return cost;
}

int64_t frequency_table_resolution(In<int64_t> counts) {
  int64_t costs[kExact + 1];
  for (int64_t resolution = 0; resolution <= kExact; ++resolution) costs[resolution] = cost_of(counts, resolution);
  return std::min_element(costs, costs + kExact + 1) - costs;
}

Out<uint32_t> frequency_table_decode(In<uint8_t> table, int64_t symbols, int64_t outside, int64_t resolution) {
  const Places places(symbols, outside);
  if (resolution == kExact) return read_exact(table.data(), table.size(), places);
  const Weights weights(resolution);
  uint8_t down[kMostSymbols];
  read_deltas(table.data(), table.size(), down, places.symbols);
  int64_t found[kMostSymbols] = {};
  for (size_t i = 0; i < places.symbols; ++i) {
    require(down[i] < weights.size, "a frequency table is out of range");
    found[places.of(i)] = weights.of[weights.size - 1 - down[i]];
  }
  return normalized(found, places.size);
}

const Binder binder([](nb::module_& m) {
  m.def("frequency_table_resolution", &frequency_table_resolution, nb::arg("counts").noconvert());
  m.def("frequency_table_encode", &frequency_table_encode, nb::arg("counts").noconvert(), nb::arg("resolution"));
  m.def("frequency_table_decode", &frequency_table_decode, nb::arg("table").noconvert(), nb::arg("symbols"),
        nb::arg("outside"), nb::arg("resolution"));
});

}  // namespace
}  // namespace sparsewire
