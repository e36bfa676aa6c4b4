// Asymmetric numeral systems: 32-bit states, 16-bit words, frequencies out of 4096.
#include "bitio.hpp"

namespace sparsewire {
namespace {

constexpr unsigned kBits = 12;
constexpr uint32_t kTotal = 1u << kBits, kLowest = 1u << 16;

struct Slot {
  uint16_t frequency = 0, first = 0;
};

struct Model {
  std::array<Slot, 256> of;
  uint32_t most = 0;

  explicit Model(In<uint32_t> frequencies) {
    require(frequencies.size() <= 256, "frequencies do not add up to 4096");
    uint64_t sum = 0;
    for (size_t s = 0; s < frequencies.size(); ++s) {
      const uint32_t f = frequencies.data()[s];
      require(f <= kTotal && sum + f <= kTotal, "frequencies do not add up to 4096");
      of[s] = {static_cast<uint16_t>(f), static_cast<uint16_t>(sum)};
      sum += f;
      most = std::max(most, f);
    }
    require(sum == kTotal, "frequencies do not add up to 4096");
  }
};

constexpr size_t kLanes = 4;
size_t lanes_of(size_t count) { return count >= 4096 ? kLanes : 1; }

// x / f for any 32-bit x by a multiplication: ⌊x · R / 2^64⌋ with R = ⌈2^64/f⌉ is exact. For f = 1, where R does not
// fit, 2^64 − 1 gives x − 1 and `first` makes up for it. A frequency of 4096 never overflows: its limit would be 2^32.
struct Step {
  uint64_t reciprocal = 0;
  uint32_t limit = 0;              // even only for symbols without a frequency
  uint16_t rarer = 0, first = 0;  // rarer: 4096 − f
};

using Steps = std::array<Step, 256>;

Steps steps_of(const Model& model) {
  Steps steps;
  for (size_t s = 0; s < 256; ++s) {
    const uint32_t f = model.of[s].frequency, first = model.of[s].first;
    if (!f) continue;
    const uint64_t inverse = f == 1 ? ~uint64_t{0} : ~uint64_t{0} / f + 1;
    steps[s] = {inverse, (f << 20) - 1, static_cast<uint16_t>(kTotal - f),
                static_cast<uint16_t>(f == 1 ? first + kTotal - 1 : first)};
  }
  return steps;
}

SPARSEWIRE_INLINE uint32_t divide(uint32_t x, const Step& step) {
  return static_cast<uint32_t>(static_cast<unsigned __int128>(step.reciprocal) * x >> 64);
}

// Writes words from words[at − 1] downwards; returns where the last one went, or null if a symbol has no frequency.
// Whether a state overflows is unpredictable: so no branch, but a borrow and a conditional move.
template <size_t lanes>
SPARSEWIRE_INLINE uint16_t* encode(const uint8_t* symbols, size_t count, const Steps& steps, uint32_t* out_states,
                                   uint16_t* words, size_t at) {
  uint32_t states[lanes], all = 1;
  std::fill_n(states, lanes, kLowest);
  const auto one = [&](size_t i, uint32_t& state) SPARSEWIRE_FLATTEN {
    const Step& step = steps[symbols[i]];
    uint32_t x = state;
    words[at - 1] = static_cast<uint16_t>(x);
    at -= x > step.limit;
    x = x > step.limit ? x >> 16 : x;
    all &= step.limit;
    state = x + step.first + divide(x, step) * step.rarer;
  };
  for (; count % lanes; --count) one(count - 1, states[(count - 1) % lanes]);
  for (size_t i = count; i; i -= lanes)
    for (size_t lane = lanes; lane--;) one(i - lanes + lane, states[lane]);
  std::copy_n(states, lanes, out_states);
  return all ? words + at : nullptr;
}

Out<uint8_t> rans_encode(In<uint8_t> symbols, In<uint32_t> frequencies) {
  const Model model(frequencies);
  const size_t count = symbols.size(), lanes = lanes_of(count);
  const Steps steps = steps_of(model);
  thread_local Scratch<uint16_t> scratch;
  uint16_t* const words = scratch.take(count + 1);
  uint32_t states[kLanes];
  const uint16_t* first = without_gil([&] {
    return fastest([=, &steps, &states, from = symbols.data()](auto) SPARSEWIRE_FLATTEN {
      return lanes == 1 ? encode<1>(from, count, steps, states, words, count + 1)
                        : encode<kLanes>(from, count, steps, states, words, count + 1);
    });
  });
  require(first, "a symbol has no frequency");
  const size_t tail = 2 * static_cast<size_t>(words + count + 1 - first);
  Buffer<uint8_t> out(4 * lanes + tail);
  std::memcpy(out.data(), states, 4 * lanes);
  std::memcpy(out.data() + 4 * lanes, first, tail);
  return out.release();
}

struct Entry {
  uint16_t frequency, offset;  // offset: slot − first
};

struct Tables {
  std::array<Entry, kTotal> entries;
  std::array<uint8_t, kTotal> symbols;

  explicit Tables(const Model& model) {
    for (size_t s = 0; s < 256; ++s) {
      const Slot slot = model.of[s];
      Entry* const to = entries.data() + slot.first;
      for (uint16_t i = 0; i < slot.frequency; ++i) to[i] = {slot.frequency, i};
      std::fill_n(symbols.data() + slot.first, slot.frequency, static_cast<uint8_t>(s));
    }
  }
};

template <size_t lanes>
bool decode(const uint8_t* data, size_t size, const Tables& tables, uint8_t* out, size_t count) {
  uint32_t states[lanes];
  std::memcpy(states, data, sizeof(states));
  for (uint32_t x : states)
    if (x < kLowest) return false;
  const uint8_t *at = data + sizeof(states), *end = data + size;
  const auto one = [&](size_t i, uint32_t& x) {
    const uint32_t slot = x & (kTotal - 1);
    out[i] = tables.symbols[slot];
    x = tables.entries[slot].frequency * (x >> kBits) + tables.entries[slot].offset;
  };
  size_t i = 0;
  for (; i + lanes <= count && static_cast<size_t>(end - at) >= 2 * lanes; i += lanes)
    for (size_t lane = 0; lane < lanes; ++lane) {
      one(i + lane, states[lane]);
      const bool low = states[lane] < kLowest;
      uint16_t word;
      std::memcpy(&word, at, 2);
      states[lane] = low ? states[lane] << 16 | word : states[lane];
      at += 2 * low;
    }
  for (; i < count; ++i) {
    one(i, states[i % lanes]);
    if (states[i % lanes] >= kLowest) continue;
    if (end - at < 2) return false;
    uint16_t word;
    std::memcpy(&word, at, 2);
    states[i % lanes] = states[i % lanes] << 16 | word;
    at += 2;
  }
  return at == end && std::all_of(states, states + lanes, [](uint32_t x) { return x == kLowest; });
}

Out<uint8_t> rans_decode(In<uint8_t> data, In<uint32_t> frequencies, int64_t count_) {
  const Model model(frequencies);
  const size_t count = to_count(count_), lanes = lanes_of(count), size = data.size();
  const unsigned __int128 needed = static_cast<unsigned __int128>(count) * (kTotal - model.most);
  const unsigned __int128 room = static_cast<unsigned __int128>(8 * uint64_t{size} + 64) * kTotal;
  require(size >= 4 * lanes && size % 2 == 0 && needed <= room, "the rANS stream is too short");
  Buffer<uint8_t> out(count);
  const bool good = without_gil([&] {
    const Tables tables(model);
    return lanes == 1 ? decode<1>(data.data(), size, tables, out.data(), count)
                      : decode<kLanes>(data.data(), size, tables, out.data(), count);
  });
  require(good, "the rANS stream is too short or does not end where it should");
  return out.release();
}

const Binder binder([](nb::module_& m) {
  m.def("rans_encode", &rans_encode, nb::arg("symbols").noconvert(), nb::arg("frequencies").noconvert());
  m.def("rans_decode", &rans_decode, nb::arg("data").noconvert(), nb::arg("frequencies").noconvert(),
        nb::arg("count"));
});

}  // namespace
}  // namespace sparsewire
