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

// x / f for any 32-bit x by a multiplication: ⌊x · R / 2^(32+s)⌋ with R = ⌈2^(32+s)/f⌉ and s = ⌈log2 f⌉ is exact. R has
// 33 bits; the uppermost, always set, is left out. A frequency of 4096 never overflows, as its limit would be 2^32.
struct Step {
  uint32_t reciprocal = 0, limit = 0;
  uint16_t rarer = 0, first = 0;  // rarer: 4096 − f
  uint32_t shift = 0;
};

using Steps = std::array<Step, 256>;

Steps steps_of(const Model& model) {
  Steps steps;
  for (size_t s = 0; s < 256; ++s) {
    const uint64_t f = model.of[s].frequency;
    if (!f) continue;
    const unsigned log = bit_length(f - 1);
    const uint64_t inverse = ((uint64_t{1} << (32 + log)) + f - 1) / f;
    steps[s] = {static_cast<uint32_t>(inverse), static_cast<uint32_t>((f << 20) - 1),
                static_cast<uint16_t>(kTotal - f), model.of[s].first, log};
  }
  return steps;
}

SPARSEWIRE_INLINE uint32_t divide(uint64_t x, const Step& step) {
  return static_cast<uint32_t>((x + (x * step.reciprocal >> 32)) >> step.shift);
}

// Writes words downwards from `to`; returns where the last one went.
template <size_t lanes>
uint16_t* encode(const uint8_t* symbols, size_t count, const Steps& steps, uint32_t* out_states, uint16_t* to) {
  uint32_t states[lanes];
  std::fill_n(states, lanes, kLowest);
  const auto one = [&](size_t i, uint32_t& state) {
    const Step& step = steps[symbols[i]];
    uint32_t x = state;
    const bool full = x > step.limit;
    to[-1] = static_cast<uint16_t>(x);
    to -= full;
    x = full ? x >> 16 : x;
    state = x + step.first + divide(x, step) * step.rarer;
  };
  for (; count % lanes; --count) one(count - 1, states[(count - 1) % lanes]);
  for (size_t i = count; i; i -= lanes)
    for (size_t lane = lanes; lane--;) one(i - lanes + lane, states[lane]);
  std::copy_n(states, lanes, out_states);
  return to;
}

Out<uint8_t> rans_encode(In<uint8_t> symbols, In<uint32_t> frequencies) {
  const Model model(frequencies);
  const size_t count = symbols.size(), lanes = lanes_of(count);
  bool good = true;
  for (size_t i = 0; i < count; ++i) good &= model.of[symbols.data()[i]].frequency != 0;
  require(good, "a symbol has no frequency");
  const Steps steps = steps_of(model);
  thread_local Scratch<uint16_t> scratch;
  uint16_t* words = scratch.take(count + 1);
  uint32_t states[kLanes];
  uint16_t* first = without_gil([&] {
    return lanes == 1 ? encode<1>(symbols.data(), count, steps, states, words + count + 1)
                      : encode<kLanes>(symbols.data(), count, steps, states, words + count + 1);
  });
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
    for (size_t s = 0; s < 256; ++s)
      for (uint32_t i = 0; i < model.of[s].frequency; ++i) {
        entries[model.of[s].first + i] = {model.of[s].frequency, static_cast<uint16_t>(i)};
        symbols[model.of[s].first + i] = static_cast<uint8_t>(s);
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
