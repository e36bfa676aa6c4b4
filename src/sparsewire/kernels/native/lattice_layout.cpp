// What costs the least bits for a histogram of cells, in integers.
#include "lattice.hpp"

namespace sparsewire {
namespace {

constexpr int64_t kTableBits = 3;  // what a symbol's entry costs, about

// 65536 · log2(1 + i/256), rounded: a number that is squared 17 times shows 17 binary digits of its logarithm.
constexpr std::array<int64_t, 257> logarithms() {
  std::array<int64_t, 257> table{};
  for (uint64_t i = 0; i < 256; ++i) {
    uint64_t number = (256 + i) << 23, digits = 0;
    for (int digit = 0; digit < 17; ++digit) {
      number = number * number >> 31;
      digits = 2 * digits + (number >> 32);
      number >>= number >> 32;
    }
    table[i] = static_cast<int64_t>((digits + 1) / 2);
  }
  table[256] = 65536;
  return table;
}

constexpr auto kLogarithms = logarithms();

// 65536 · log2: octave, 8 bits that choose a line, 16 bits on it.
int64_t log2_of(int64_t number) {
  const int octave = static_cast<int>(bit_length(static_cast<uint64_t>(number))) - 1;
  const int64_t scaled = octave < 24 ? number << (24 - octave) : number >> (octave - 24);
  const int64_t line = scaled >> 16 & 255, along = scaled & 65535;
  const int64_t rise = (kLogarithms[line + 1] - kLogarithms[line]) * along >> 16;
  return (int64_t{octave} << 16) + kLogarithms[line] + rise;
}

uint32_t lowest_cell(uint32_t bin) { return bin < 32 ? bin : (32 + bin % 32) << (bin / 32 - 1); }

struct Histogram {
  const int64_t* counts;  // above 0 and below, for each bin, then for what is outside
  size_t used = 1;        // up to the last bin that has some
  int64_t inside = 0, under = 0, cells = 0;

  explicit Histogram(const int64_t* from) : counts(from) {
    for (size_t bin = 0; bin < kBins; ++bin) {
      if (!of(bin)) continue;
      used = bin + 1;
      inside += of(bin);
      under += counts[2 * bin + 1];
      cells += of(bin) * lowest_cell(static_cast<uint32_t>(bin));
    }
  }

  int64_t of(size_t bin) const { return counts[2 * bin] + counts[2 * bin + 1]; }
};

// How often each symbol comes, up to the last one inside the grid that does, and all extra bits.
struct Symbols {
  std::array<int64_t, 2 + 2 * kBins> counts;
  size_t size = 3;
  int64_t extra = 0;

  void count(const Histogram& from, unsigned shift, unsigned precision, bool folded) {
    counts[0] = from.counts[2 * kBins];
    counts[1] = from.counts[2 * kBins + 2];
    counts[2] = 0;
    size = 3;
    extra = 0;
    for (size_t bin = 0; bin < from.used; ++bin) {
      const uint32_t cell = lowest_cell(static_cast<uint32_t>(bin)) >> shift;
      const unsigned below = bits_below(cell, precision);
      const size_t symbol = 2 + (size_t{log_linear(cell, precision, below)} << folded);
      while (size <= symbol + folded) counts[size++] = 0;
      counts[symbol] += from.counts[2 * bin];
      counts[symbol + folded] += from.counts[2 * bin + 1];
      extra += from.of(bin) * (below + shift);
    }
    if (size > 3 && !counts[size - 1]) --size;  // of two that only differ in their sign
  }

  // In 1/65536 of a bit: the entropy, the table, the extra bits.
  int64_t cost() const {
    int64_t total = 0, sum = 0;
    for (size_t i = 0; i < size; ++i) {
      if (!counts[i]) continue;
      total += counts[i];
      sum += counts[i] * log2_of(counts[i]);
    }
    const int64_t whole = total ? total * log2_of(total) : 0;
    return whole - sum + ((kTableBits * static_cast<int64_t>(size) + extra) << 16);
  }

  void trim() {
    while (size > 1 && !counts[size - 1]) --size;
  }
};

struct Choice {
  unsigned shift = 0, precision = 0;
  int signs = 0;
  int64_t cost = std::numeric_limits<int64_t>::max();
};

// Classes for about 8 to 32 steps up to the mean cell; finer ones cost table, not bits.
Choice cheapest(const Histogram& histogram, Symbols& symbols) {
  const uint64_t mean = static_cast<uint64_t>(histogram.cells / std::max<int64_t>(1, histogram.inside));
  const unsigned length = bit_length(mean), middle = length > 4 ? length - 4 : 0;
  Choice best;
  for (unsigned shift = middle ? middle - 1 : 0; shift < middle + 2; ++shift)
    for (unsigned precision = 1; precision < 5; ++precision) {
      symbols.count(histogram, shift, precision, false);
      if (symbols.size > kMostSymbols) continue;
      const int64_t cost = symbols.cost();
      if (cost < best.cost) best = {shift, precision, 0, cost};
    }
  return best;
}

Choice choose(const Histogram& histogram, Symbols& symbols) {
  Choice best = cheapest(histogram, symbols);
  const bool mixed = histogram.under && histogram.under < histogram.inside;
  if (mixed) {
    symbols.count(histogram, best.shift, best.precision, true);
    best.signs = symbols.size <= kMostSymbols && symbols.cost() < best.cost + (histogram.inside << 16) ? 2 : 1;
  } else {
    best.signs = histogram.under ? -1 : 0;
  }
  if (best.signs != 2) symbols.count(histogram, best.shift, best.precision, false);
  symbols.trim();
  return best;
}

std::tuple<unsigned, unsigned, int, Out<int64_t>> lattice_layout(In<int64_t> counts) {
  require(counts.size() == 2 * kRows, "counts are out of range");
  int64_t total = 0;
  for (size_t i = 0; i < counts.size(); ++i) {
    require(counts.data()[i] >= 0 && counts.data()[i] <= kMostValues - total, "counts are out of range");
    total += counts.data()[i];
  }
  Symbols symbols;
  const Choice choice = without_gil([&] { return choose(Histogram(counts.data()), symbols); });
  Buffer<int64_t> out(symbols.size);
  std::copy_n(symbols.counts.data(), symbols.size, out.data());
  return {choice.shift, choice.precision, choice.signs, out.release()};
}

const Binder binder([](nb::module_& m) {
  m.def("lattice_layout", &lattice_layout, nb::arg("counts").noconvert());
});

}  // namespace
}  // namespace sparsewire
