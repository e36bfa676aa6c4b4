// Cells as symbols and extra bits, and the points that stand for them.
#include "lattice.hpp"

namespace sparsewire {
namespace {

// --- codes to symbols and back -----------------------------------------------------------------------------------

struct Layout {
  unsigned shift, precision;
  bool bit, folded;

  Layout(int64_t shift_, int64_t precision_, int64_t signs)
      : shift(static_cast<unsigned>(shift_)), precision(static_cast<unsigned>(precision_)), bit(signs == 1),
        folded(signs == 2) {
    require(shift_ >= 0 && shift_ <= 22 && precision_ >= 0 && precision_ <= 5 && signs >= -1 && signs <= 2,
            "a shift, a precision or a kind of signs is out of range");
  }
};

// What a code becomes, in one word: 16 bits of symbol, 16 of width, the extra bits.
using Piece = uint64_t;

SPARSEWIRE_INLINE unsigned width_of(Piece piece) { return piece >> 16 & 0xFFFF; }
SPARSEWIRE_INLINE uint64_t extra_of(Piece piece) { return piece >> 32; }

SPARSEWIRE_INLINE Piece piece_of(int32_t code, Layout layout) {
  const uint32_t raw = static_cast<uint32_t>(code), negative = raw >> 31;
  if (code == 0 || code == kNotFinite) return negative;
  const uint32_t cell = ((raw ^ (0 - negative)) + negative) - 1;
  const unsigned below = bits_below(cell >> layout.shift, layout.precision), width = below + layout.shift;
  const uint32_t kind = log_linear(cell >> layout.shift, layout.precision, below);
  const uint64_t extra = (cell & low_mask(width)) << layout.bit | (layout.bit & negative);
  const uint64_t symbol = 2 + (kind << layout.folded) + (layout.folded & negative);
  return symbol | uint64_t{width + layout.bit} << 16 | extra << 32;
}

// Small codes of either sign are looked up.
class Splitter {
 public:
  SPARSEWIRE_INLINE Splitter(Layout layout, size_t count) : layout_(layout), near_(count < 2 * kNear ? 32 : kNear) {
    for (uint32_t place = 0; place < 2 * near_; ++place) {
      table_[place] = piece_of(static_cast<int32_t>(place - near_), layout);
      widest_ = std::max(widest_, width_of(table_[place]));
    }
  }

  // Whether four pieces from the table fit one append.
  SPARSEWIRE_INLINE bool narrow() const { return 4 * widest_ <= BitWriter::kMost; }

  SPARSEWIRE_INLINE bool near(const int32_t* four) const {
    return (place(four[0]) | place(four[1]) | place(four[2]) | place(four[3])) < 2 * near_;
  }

  SPARSEWIRE_INLINE Piece known(int32_t code) const { return table_[place(code)]; }

  SPARSEWIRE_INLINE Piece operator()(int32_t code) {
    if (place(code) < 2 * near_) return known(code);
    good_ &= code == kNotFinite || std::abs(int64_t{code}) <= kMostCells;
    return piece_of(code, layout_);
  }

  bool good() const { return good_; }  // whether all cells were in range

 private:
  static constexpr uint32_t kNear = 512;
  SPARSEWIRE_INLINE uint32_t place(int32_t code) const { return static_cast<uint32_t>(code) + near_; }
  Layout layout_;
  uint32_t near_;  // a power of two
  unsigned widest_ = 0;
  bool good_ = true;
  Piece table_[2 * kNear];
};

// The extra bits of two pieces in a row.
SPARSEWIRE_INLINE uint64_t both(Piece a, Piece b) { return extra_of(a) | extra_of(b) << width_of(a); }

// Whether all cells and symbols are in range. The writer is what takes long, so four pieces go to one append where they
// may; one alone has at most 24 bits.
SPARSEWIRE_INLINE bool split(const int32_t* codes, size_t count, Layout layout, uint8_t* symbols, BitWriter& out) {
  Splitter splitter(layout, count);
  Piece any = 0;
  const auto single = [&](size_t i) SPARSEWIRE_FLATTEN {
    const Piece piece = splitter(codes[i]);
    symbols[i] = static_cast<uint8_t>(piece);
    any |= piece;
    out.append(extra_of(piece), width_of(piece));
  };
  const bool narrow = splitter.narrow();
  size_t i = 0;
  for (; i + 4 <= count; i += 4) {
    if (!narrow || !splitter.near(codes + i)) {
      for (size_t j = i; j < i + 4; ++j) single(j);
      continue;
    }
    const Piece a = splitter.known(codes[i]), b = splitter.known(codes[i + 1]);
    const Piece c = splitter.known(codes[i + 2]), d = splitter.known(codes[i + 3]);
    any |= a | b | c | d;
    const uint32_t four = static_cast<uint32_t>((a & 255) | (b & 255) << 8 | (c & 255) << 16 | d << 24);
    std::memcpy(symbols + i, &four, 4);
    const unsigned first = width_of(a) + width_of(b);
    out.append(both(a, b) | both(c, d) << first, first + width_of(c) + width_of(d));
  }
  for (; i < count; ++i) single(i);
  return splitter.good() && (any & 0xFFFF) < 256;
}

auto lattice_split(In<int32_t> codes, int64_t shift, int64_t precision, int64_t signs) {
  const Layout layout(shift, precision, signs);
  const size_t count = codes.size();
  Buffer<uint8_t> symbols(count), extra(4 * count + BitWriter::kSlack);
  const ptrdiff_t bytes = without_gil([&] {
    return fastest([=, from = codes.data(), to = symbols.data(), bits = extra.data()](auto) SPARSEWIRE_FLATTEN {
      BitWriter writer(bits);
      return split(from, count, layout, to, writer) ? static_cast<ptrdiff_t>(writer.bytes()) : ptrdiff_t{-1};
    });
  });
  require(bytes >= 0, "there are too many symbols or cells");
  auto first = symbols.release();
  return std::make_pair(std::move(first), extra.release(static_cast<size_t>(bytes)));
}

struct Symbol {
  int32_t lowest;  // its first cell; −1 for code 0, −2 for not finite
  uint32_t width;
};

// Symbols that stand for cells of the grid; all from `size` on do not.
struct Symbols {
  std::array<Symbol, 256> of{};
  size_t size = 2;

  explicit Symbols(Layout layout) {
    of[0].lowest = -1;
    of[1].lowest = -2;
    for (; size < of.size(); ++size) {
      const uint32_t kind = static_cast<uint32_t>(size - 2) >> layout.folded, octave = kind >> layout.precision;
      const uint32_t below = octave ? octave - 1 : 0, width = below + layout.shift;
      if (width > 22) return;
      const uint64_t lowest = uint64_t{kind - (below << layout.precision)} << width;
      if (lowest + (uint64_t{1} << width) > kMostCells) return;
      of[size] = {static_cast<int32_t>(lowest), width + layout.bit};
    }
  }
};

SPARSEWIRE_INLINE int32_t code_of(Symbol symbol, uint64_t extra, uint32_t number, int signs) {
  const int32_t cell = static_cast<int32_t>(signs == 1 ? extra >> 1 : extra);
  const uint32_t negative = signs == -1 ? 1 : signs == 1 ? extra & 1 : signs == 2 ? number & 1 : 0;
  const int32_t code = 1 + symbol.lowest + cell, flip = -static_cast<int32_t>(negative);
  return symbol.lowest >= 0 ? (code ^ flip) - flip : symbol.lowest == -1 ? 0 : kNotFinite;
}

SPARSEWIRE_INLINE bool join(const uint8_t* symbols, size_t count, const uint8_t* data, size_t size,
                            const std::array<Symbol, 256>& table, int signs, int32_t* codes) {
  uint64_t bit = 0;
  size_t i = 0;
  for (; i < count && (bit >> 3) + 8 <= size; ++i) {
    const Symbol symbol = table[symbols[i]];
    const uint64_t extra = load64(data + (bit >> 3)) >> (bit & 7) & low_mask(symbol.width);
    codes[i] = code_of(symbol, extra, symbols[i], signs);
    bit += symbol.width;
  }
  for (; i < count; ++i) {
    const Symbol symbol = table[symbols[i]];
    if (bit + symbol.width > 8 * uint64_t{size}) return false;
    const uint64_t extra = symbol.width ? peek(data, size, bit, symbol.width) : 0;
    codes[i] = code_of(symbol, extra, symbols[i], signs);
    bit += symbol.width;
  }
  return bytes_of(bit) == size;
}

Out<int32_t> lattice_join(In<uint8_t> symbols, In<uint8_t> extra, int64_t shift, int64_t precision, int64_t signs) {
  const Symbols table(Layout(shift, precision, signs));
  const size_t count = symbols.size();
  uint8_t top = 0;
  for (size_t i = 0; i < count; ++i) top = std::max(top, symbols.data()[i]);
  require(top < table.size, "a symbol stands for cells beyond the grid");
  Buffer<int32_t> codes(count);
  const bool good = without_gil([&] {
    return fastest([=, &table, from = symbols.data(), data = extra.data(), bytes = extra.size(), to = codes.data()](
                       auto) SPARSEWIRE_FLATTEN {
      const int kind = static_cast<int>(signs);
      return join(from, count, data, bytes, table.of, kind, to);
    });
  });
  require(good, "there are too many or too few extra bits");
  return codes.release();
}

// --- codes to values ---------------------------------------------------------------------------------------------

struct Points {
  double start, unit, limit;
  const uint8_t* offsets;
  int32_t last;  // the offset of all cells from here on

  template <class T>
  T at(int32_t code) const {
    if (code == 0) return 0;
    if (code == kNotFinite) return std::numeric_limits<T>::quiet_NaN();
    const int32_t cell = (code < 0 ? -code : code) - 1;
    const double raw = start + static_cast<double>(256 * int64_t{cell} + offsets[std::min(cell, last)]) * unit;
    const double magnitude = raw < limit ? raw : limit;
    return static_cast<T>(code < 0 ? -magnitude : magnitude);
  }
};

// Most codes are near 0: their points come from a table. `out` may be where the codes are: no typed access to both.
template <class T>
bool points(const int32_t* codes, size_t count, const Points& p, T* out) {
  constexpr int32_t kNear = 512;
  const int32_t near = static_cast<int32_t>(std::min<size_t>(kNear, count));
  T table[2 * kNear + 1];
  for (int32_t code = -near; code <= near; ++code) table[code + near] = p.at<T>(code);
  bool good = true;
  for (size_t i = 0; i < count; ++i) {
    int32_t code;
    std::memcpy(&code, codes + i, sizeof(code));
    T point;
    if (static_cast<uint32_t>(code) + near <= 2u * near) {
      point = table[code + near];
    } else {
      const int64_t size = code < 0 ? -int64_t{code} : code;
      good &= code == kNotFinite || size <= kMostCells;
      point = p.at<T>(code);
    }
    std::memcpy(out + i, &point, sizeof(point));
  }
  return good;
}

template <class T>
void lattice_points(InOut<T> out, In<int32_t> codes, double start, double unit, In<uint8_t> offsets, double limit) {
  const size_t count = codes.size();
  require(out.size() == count && offsets.size() && offsets.size() <= 256, "codes and tables do not fit");
  const Points table{start, unit, limit, offsets.data(), static_cast<int32_t>(offsets.size() - 1)};
  require(without_gil([&] { return points(codes.data(), count, table, out.data()); }), "a cell is out of range");
}

template <class T>
void bind(nb::module_& m) {
  m.def("lattice_points", &lattice_points<T>, nb::arg("out").noconvert(), nb::arg("codes").noconvert(),
        nb::arg("start"), nb::arg("unit"), nb::arg("offsets").noconvert(), nb::arg("limit"));
}

const Binder binder([](nb::module_& m) {
  m.def("lattice_split", &lattice_split, nb::arg("codes").noconvert(), nb::arg("shift"), nb::arg("precision"),
        nb::arg("signs"));
  m.def("lattice_join", &lattice_join, nb::arg("symbols").noconvert(), nb::arg("extra").noconvert(),
        nb::arg("shift"), nb::arg("precision"), nb::arg("signs"));
  bind<float>(m);
  bind<double>(m);
});

}  // namespace
}  // namespace sparsewire
