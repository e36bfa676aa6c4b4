// Bin indices as symbols and extra bits, and their reconstruction points.
#include "quantizer.hpp"

namespace sparsewire {
namespace {

// --- bin indices to symbols and back -----------------------------------------------------------------------------

struct Alphabet {
  unsigned shift, precision;
  bool sign_bit, sign_in_symbol;

  Alphabet(int64_t shift_, int64_t precision_, int64_t signs)
      : shift(static_cast<unsigned>(shift_)), precision(static_cast<unsigned>(precision_)),
        sign_bit(signs == 1), sign_in_symbol(signs == 2) {
    require(shift_ >= 0 && shift_ <= 22 && precision_ >= 0 && precision_ <= 5 && signs >= -1 && signs <= 2,
            "a shift, a precision or a kind of signs is out of range");
  }
};

// An encoded bin index in one word: 16 bits of symbol, 16 of width, the extra bits.
using Encoded = uint64_t;

SPARSEWIRE_INLINE unsigned width_of(Encoded encoded) { return encoded >> 16 & 0xFFFF; }
SPARSEWIRE_INLINE uint64_t extra_of(Encoded encoded) { return encoded >> 32; }

SPARSEWIRE_INLINE Encoded encoded_of(int32_t bin_index, Alphabet alphabet) {
  const uint32_t raw = static_cast<uint32_t>(bin_index), negative = raw >> 31;
  if (bin_index == 0 || bin_index == kNonFinite) return negative;
  const uint32_t bin = ((raw ^ (0 - negative)) + negative) - 1;
  const unsigned below = bits_below(bin >> alphabet.shift, alphabet.precision), width = below + alphabet.shift;
  const uint32_t kind = log_linear(bin >> alphabet.shift, alphabet.precision, below);
  const uint64_t extra = (bin & low_mask(width)) << alphabet.sign_bit | (alphabet.sign_bit & negative);
  const uint64_t symbol = 2 + (kind << alphabet.sign_in_symbol) + (alphabet.sign_in_symbol & negative);
  return symbol | uint64_t{width + alphabet.sign_bit} << 16 | extra << 32;
}

// Small bin indices of either sign are looked up.
class Encoder {
 public:
  SPARSEWIRE_INLINE Encoder(Alphabet alphabet, size_t count)
      : alphabet_(alphabet), near_(count < 2 * kNear ? 32 : kNear) {
    for (uint32_t place = 0; place < 2 * near_; ++place) {
      table_[place] = encoded_of(static_cast<int32_t>(place - near_), alphabet);
      widest_ = std::max(widest_, width_of(table_[place]));
    }
  }

  // Whether four bin indices from the table fit one append.
  SPARSEWIRE_INLINE bool narrow() const { return 4 * widest_ <= BitWriter::kMost; }

  SPARSEWIRE_INLINE bool near(const int32_t* four) const {
    return (place(four[0]) | place(four[1]) | place(four[2]) | place(four[3])) < 2 * near_;
  }

  SPARSEWIRE_INLINE Encoded known(int32_t bin_index) const { return table_[place(bin_index)]; }

  SPARSEWIRE_INLINE Encoded operator()(int32_t bin_index) {
    if (place(bin_index) < 2 * near_) return known(bin_index);
    good_ &= bin_index == kNonFinite || std::abs(int64_t{bin_index}) <= kMostBins;
    return encoded_of(bin_index, alphabet_);
  }

  bool good() const { return good_; }  // whether all bins were in range

 private:
  static constexpr uint32_t kNear = 512;
  SPARSEWIRE_INLINE uint32_t place(int32_t bin_index) const { return static_cast<uint32_t>(bin_index) + near_; }
  Alphabet alphabet_;
  uint32_t near_;  // a power of two
  unsigned widest_ = 0;
  bool good_ = true;
  Encoded table_[2 * kNear];
};

// The extra bits of both, one after the other.
SPARSEWIRE_INLINE uint64_t both(Encoded a, Encoded b) { return extra_of(a) | extra_of(b) << width_of(a); }

// Whether all bins and symbols are in range. Appending takes the most time, so four bin indices share one append where
// they fit; a single one has at most 24 bits.
SPARSEWIRE_INLINE bool encode(const int32_t* bin_indices, size_t count, Alphabet alphabet, uint8_t* symbols,
                              BitWriter& out) {
  Encoder encoder(alphabet, count);
  Encoded any = 0;
  const auto single = [&](size_t i) SPARSEWIRE_FLATTEN {
    const Encoded encoded = encoder(bin_indices[i]);
    symbols[i] = static_cast<uint8_t>(encoded);
    any |= encoded;
    out.append(extra_of(encoded), width_of(encoded));
  };
  const bool narrow = encoder.narrow();
  size_t i = 0;
  for (; i + 4 <= count; i += 4) {
    if (!narrow || !encoder.near(bin_indices + i)) {
      for (size_t j = i; j < i + 4; ++j) single(j);
      continue;
    }
    const Encoded a = encoder.known(bin_indices[i]), b = encoder.known(bin_indices[i + 1]);
    const Encoded c = encoder.known(bin_indices[i + 2]), d = encoder.known(bin_indices[i + 3]);
    any |= a | b | c | d;
    const uint32_t four = static_cast<uint32_t>((a & 255) | (b & 255) << 8 | (c & 255) << 16 | d << 24);
    std::memcpy(symbols + i, &four, 4);
    const unsigned first = width_of(a) + width_of(b);
    out.append(both(a, b) | both(c, d) << first, first + width_of(c) + width_of(d));
  }
  for (; i < count; ++i) single(i);
  return encoder.good() && (any & 0xFFFF) < 256;
}

auto symbols_encode(In<int32_t> bin_indices, int64_t shift, int64_t precision, int64_t signs) {
  const Alphabet alphabet(shift, precision, signs);
  const size_t count = bin_indices.size();
  Buffer<uint8_t> symbols(count), extra(4 * count + BitWriter::kSlack);
  const ptrdiff_t bytes = without_gil([&] {
    return fastest([=, from = bin_indices.data(), to = symbols.data(), bits = extra.data()](auto) SPARSEWIRE_FLATTEN {
      BitWriter writer(bits);
      return encode(from, count, alphabet, to, writer) ? static_cast<ptrdiff_t>(writer.bytes()) : ptrdiff_t{-1};
    });
  });
  require(bytes >= 0, "there are too many symbols or bins");
  auto first = symbols.release();
  return std::make_pair(std::move(first), extra.release(static_cast<size_t>(bytes)));
}

struct Symbol {
  int32_t lowest;  // its first bin; −1 for the dead zone, −2 for non-finite
  uint32_t width;
};

// The symbols whose bins are in range; those from `size` on are not.
struct Symbols {
  std::array<Symbol, 256> of{};
  size_t size = 2;

  explicit Symbols(Alphabet alphabet) {
    of[0].lowest = -1;
    of[1].lowest = -2;
    for (; size < of.size(); ++size) {
      const uint32_t kind = static_cast<uint32_t>(size - 2) >> alphabet.sign_in_symbol;
      const uint32_t octave = kind >> alphabet.precision, below = octave ? octave - 1 : 0, width = below + alphabet.shift;
      if (width > 22) return;
      const uint64_t lowest = uint64_t{kind - (below << alphabet.precision)} << width;
      if (lowest + (uint64_t{1} << width) > kMostBins) return;
      of[size] = {static_cast<int32_t>(lowest), width + alphabet.sign_bit};
    }
  }
};

SPARSEWIRE_INLINE int32_t bin_index_of(Symbol symbol, uint64_t extra, uint32_t number, int signs) {
  const int32_t bin = static_cast<int32_t>(signs == 1 ? extra >> 1 : extra);
  const uint32_t negative = signs == -1 ? 1 : signs == 1 ? extra & 1 : signs == 2 ? number & 1 : 0;
  const int32_t bin_index = 1 + symbol.lowest + bin, flip = -static_cast<int32_t>(negative);
  return symbol.lowest >= 0 ? (bin_index ^ flip) - flip : symbol.lowest == -1 ? 0 : kNonFinite;
}

SPARSEWIRE_INLINE bool decode(const uint8_t* symbols, size_t count, const uint8_t* data, size_t size,
                              const std::array<Symbol, 256>& table, int signs, int32_t* bin_indices) {
  uint64_t bit = 0;
  size_t i = 0;
  for (; i < count && (bit >> 3) + 8 <= size; ++i) {
    const Symbol symbol = table[symbols[i]];
    const uint64_t extra = load64(data + (bit >> 3)) >> (bit & 7) & low_mask(symbol.width);
    bin_indices[i] = bin_index_of(symbol, extra, symbols[i], signs);
    bit += symbol.width;
  }
  for (; i < count; ++i) {
    const Symbol symbol = table[symbols[i]];
    if (bit + symbol.width > 8 * uint64_t{size}) return false;
    const uint64_t extra = symbol.width ? peek(data, size, bit, symbol.width) : 0;
    bin_indices[i] = bin_index_of(symbol, extra, symbols[i], signs);
    bit += symbol.width;
  }
  return bytes_of(bit) == size;
}

Out<int32_t> symbols_decode(In<uint8_t> symbols, In<uint8_t> extra, int64_t shift, int64_t precision, int64_t signs) {
  const Symbols table(Alphabet(shift, precision, signs));
  const size_t count = symbols.size();
  uint8_t top = 0;
  for (size_t i = 0; i < count; ++i) top = std::max(top, symbols.data()[i]);
  require(top < table.size, "a symbol's bins are out of range");
  Buffer<int32_t> bin_indices(count);
  const bool good = without_gil([&] {
    return fastest([=, &table, from = symbols.data(), to = bin_indices.data(), data = extra.data(),
                    bytes = extra.size()](auto) SPARSEWIRE_FLATTEN {
      return decode(from, count, data, bytes, table.of, static_cast<int>(signs), to);
    });
  });
  require(good, "there are too many or too few extra bits");
  return bin_indices.release();
}

// --- bin indices to values ---------------------------------------------------------------------------------------

struct Reconstruction {
  double start, unit, limit;
  const uint8_t* offsets;
  int32_t last;  // the bin whose offset is that of all further bins

  template <class T>
  T at(int32_t bin_index) const {
    if (bin_index == 0) return 0;
    if (bin_index == kNonFinite) return std::numeric_limits<T>::quiet_NaN();
    const int32_t bin = (bin_index < 0 ? -bin_index : bin_index) - 1;
    const double raw = start + static_cast<double>(256 * int64_t{bin} + offsets[std::min(bin, last)]) * unit;
    const double magnitude = raw < limit ? raw : limit;
    return static_cast<T>(bin_index < 0 ? -magnitude : magnitude);
  }
};

// Most bin indices are near 0: their points come from a table. `out` may share their memory: no typed access to both.
template <class T>
bool reconstruct_all(const int32_t* bin_indices, size_t count, const Reconstruction& p, T* out) {
  constexpr int32_t kNear = 512;
  const int32_t near = static_cast<int32_t>(std::min<size_t>(kNear, count));
  T table[2 * kNear + 1];
  for (int32_t bin_index = -near; bin_index <= near; ++bin_index) table[bin_index + near] = p.at<T>(bin_index);
  bool good = true;
  for (size_t i = 0; i < count; ++i) {
    int32_t bin_index;
    std::memcpy(&bin_index, bin_indices + i, sizeof(bin_index));
    T point;
    if (static_cast<uint32_t>(bin_index) + near <= 2u * near) {
      point = table[bin_index + near];
    } else {
      const int64_t size = bin_index < 0 ? -int64_t{bin_index} : bin_index;
      good &= bin_index == kNonFinite || size <= kMostBins;
      point = p.at<T>(bin_index);
    }
    std::memcpy(out + i, &point, sizeof(point));
  }
  return good;
}

template <class T>
void reconstruct(InOut<T> out, In<int32_t> bin_indices, double start, double unit, In<uint8_t> offsets, double limit) {
  const size_t count = bin_indices.size();
  require(out.size() == count, "the output does not fit the bin indices");
  require(offsets.size() && offsets.size() <= 256, "there are no offsets, or too many");
  const Reconstruction table{start, unit, limit, offsets.data(), static_cast<int32_t>(offsets.size() - 1)};
  const bool good = without_gil([&] { return reconstruct_all(bin_indices.data(), count, table, out.data()); });
  require(good, "a bin is out of range");
}

template <class T>
void bind(nb::module_& m) {
  m.def("reconstruct", &reconstruct<T>, nb::arg("out").noconvert(), nb::arg("bin_indices").noconvert(),
        nb::arg("start"), nb::arg("unit"), nb::arg("offsets").noconvert(), nb::arg("limit"));
}

const Binder binder([](nb::module_& m) {
  m.def("symbols_encode", &symbols_encode, nb::arg("bin_indices").noconvert(), nb::arg("shift"), nb::arg("precision"),
        nb::arg("signs"));
  m.def("symbols_decode", &symbols_decode, nb::arg("symbols").noconvert(), nb::arg("extra").noconvert(),
        nb::arg("shift"), nb::arg("precision"), nb::arg("signs"));
  bind<float>(m);
  bind<double>(m);
});

}  // namespace
}  // namespace sparsewire
