// The symbol alphabet that costs the least for a histogram of bins, found in integers.
#include "log2.hpp"
#include "quantizer.hpp"

namespace sparsewire {
namespace {

constexpr int64_t kTableBits = 3;  // what a symbol takes in the frequency table, about

uint32_t lowest_bin(uint32_t kind) { return kind < 32 ? kind : (32 + kind % 32) << (kind / 32 - 1); }

struct Histogram {
  const int64_t* counts;  // above 0 and below: for each class of bins, for the dead zone, for non-finite values
  size_t used = 1;        // up to the last class that occurs
  int64_t inside = 0, under = 0, bins = 0;

  explicit Histogram(const int64_t* from) : counts(from) {
    for (size_t kind = 0; kind < kClasses; ++kind) {
      if (!of(kind)) continue;
      used = kind + 1;
      inside += of(kind);
      under += counts[2 * kind + 1];
      bins += of(kind) * lowest_bin(static_cast<uint32_t>(kind));
    }
  }

  int64_t of(size_t kind) const { return counts[2 * kind] + counts[2 * kind + 1]; }
};

// The count of each symbol, up to the last class of bins that occurs, and the number of extra bits.
struct Symbols {
  std::array<int64_t, 2 + 2 * kClasses> counts;
  size_t size = 3;
  int64_t extra = 0;

  void count(const Histogram& from, unsigned shift, unsigned precision, bool with_signs) {
    counts[0] = from.counts[2 * kClasses];
    counts[1] = from.counts[2 * kClasses + 2];
    counts[2] = 0;
    size = 3;
    extra = 0;
    for (size_t kind = 0; kind < from.used; ++kind) {
      const uint32_t bin = lowest_bin(static_cast<uint32_t>(kind)) >> shift;
      const unsigned below = bits_below(bin, precision);
      const size_t symbol = 2 + (size_t{log_linear(bin, precision, below)} << with_signs);
      while (size <= symbol + with_signs) counts[size++] = 0;
      counts[symbol] += from.counts[2 * kind];
      counts[symbol + with_signs] += from.counts[2 * kind + 1];
      extra += from.of(kind) * (below + shift);
    }
    if (size > 3 && !counts[size - 1]) --size;  // the last class is never negative
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

// 8 to 32 shifted bins up to the mean bin; finer alphabets only cost a larger table.
Choice cheapest(const Histogram& histogram, Symbols& symbols) {
  const uint64_t mean = static_cast<uint64_t>(histogram.bins / std::max<int64_t>(1, histogram.inside));
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

std::tuple<unsigned, unsigned, int, Out<int64_t>> alphabet_fit(In<int64_t> counts) {
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
  m.def("alphabet_fit", &alphabet_fit, nb::arg("counts").noconvert());
});

}  // namespace
}  // namespace sparsewire
