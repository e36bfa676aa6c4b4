// Range-based floats: magnitudes on a grid of float bits that goes down from the largest in equal steps.
#include <cmath>
#include <tuple>

#include "bitio.hpp"
#include "select_scan.hpp"

namespace sparsewire {
namespace {

constexpr size_t kChunk = 512, kLanes = 8;
using Given = std::tuple<int64_t, int64_t, int64_t>;

// One sign's grid: the bits of its largest number, how many numbers it has, and from where on the lowest is nearer than 0.
template <class T>
struct Side {
  Bits<T> top, count, half;

  explicit Side(const Given& given)
      : top(static_cast<Bits<T>>(std::get<0>(given))),
        count(static_cast<Bits<T>>(std::get<1>(given))),
        half(static_cast<Bits<T>>(std::get<2>(given))) {
    require(std::get<0>(given) >= 0 && std::get<0>(given) < kInfinity<T>, "a grid starts at no number");
    require(std::get<1>(given) >= 0 && std::get<1>(given) <= 1 << 24, "a grid has too many numbers");
    require(std::get<2>(given) >= 0 && std::get<2>(given) <= kMaxBits<T>, "a grid ends at no number");
  }
};

template <class T>
struct Grid {
  int shift;
  Side<T> above, below;

  Grid(int64_t shift_, const Given& above, const Given& below)
      : shift(static_cast<int>(shift_)), above(above), below(below) {
    require(shift_ >= 0 && shift_ <= (sizeof(T) == 4 ? 23 : 52), "a grid's step is out of range");
  }
};

template <class T>
struct Place {
  Bits<T> number, bits;  // of its side, from 1 on; 0 is zero
};

// Masks rather than choices: those would become branches.
template <class T>
SPARSEWIRE_INLINE Place<T> place(T value, const Grid<T>& grid, Bits<T>& negative) {
  Bits<T> raw;
  std::memcpy(&raw, &value, sizeof raw);
  negative = raw >> (8 * sizeof(T) - 1);
  const Bits<T> top = (grid.above.top & ~negative) | (grid.below.top & negative);
  const Bits<T> count = (grid.above.count & ~negative) | (grid.below.count & negative);
  const Bits<T> half = (grid.above.half & ~negative) | (grid.below.half & negative);
  const Bits<T> bits = std::min<Bits<T>>(raw & kMaxBits<T>, top);
  const Bits<T> steps = (top - bits + ((Bits<T>{1} << grid.shift) >> 1)) >> grid.shift;
  const Bits<T> lowest = bits >= half ? 1 : 0;
  const Bits<T> number = std::max<Bits<T>>(count - steps, lowest);
  return {number, (top - ((count - number) << grid.shift)) & -static_cast<Bits<T>>(number > 0)};
}

template <class T>
SPARSEWIRE_INLINE void encode_all(const T* values, size_t count, const Grid<T>& grid, uint32_t* codes) {
  for (size_t i = 0; i < count; ++i) {
    Bits<T> negative;
    const Bits<T> number = place(values[i], grid, negative).number;
    codes[i] = static_cast<uint32_t>(number + (grid.above.count & negative & -static_cast<Bits<T>>(number > 0)));
  }
}

// Squared differences, eight lanes of float64; the last ones with zeros.
template <class T>
SPARSEWIRE_INLINE double error_of(const T* values, size_t count, const Grid<T>& grid, double scale) {
  double squares[kChunk], lanes[kLanes] = {};
  for (size_t start = 0; start < count; start += kChunk) {
    const size_t n = std::min(kChunk, count - start), whole = (n + kLanes - 1) / kLanes * kLanes;
    for (size_t i = 0; i < n; ++i) {
      Bits<T> negative;
      const Bits<T> bits = place(values[start + i], grid, negative).bits;
      T found;
      std::memcpy(&found, &bits, sizeof bits);
      const double off = (static_cast<double>(std::abs(values[start + i])) - static_cast<double>(found)) * scale;
      squares[i] = off * off;
    }
    for (size_t i = n; i < whole; ++i) squares[i] = 0;
    for (size_t i = 0; i < whole; i += kLanes)
      for (size_t lane = 0; lane < kLanes; ++lane) lanes[lane] += squares[i + lane];
  }
  double total = 0;
  for (const double lane : lanes) total += lane;
  return total;
}

template <class T>
Out<uint32_t> range_float_encode(In<T> values, int64_t shift, const Given& above, const Given& below) {
  const Grid<T> grid(shift, above, below);
  Buffer<uint32_t> codes(values.size());
  without_gil([&] {
    fastest([=, from = values.data(), n = values.size(), to = codes.data()](auto) SPARSEWIRE_FLATTEN {
      encode_all(from, n, grid, to);
    });
  });
  return codes.release();
}

template <class T>
double range_float_error(In<T> values, int64_t shift, const Given& above, const Given& below, double scale) {
  const Grid<T> grid(shift, above, below);
  return without_gil([&] {
    return fastest([=, from = values.data(), n = values.size()](auto) SPARSEWIRE_FLATTEN {
      return error_of(from, n, grid, scale);
    });
  });
}

template <class T>
Out<T> lookup(In<uint32_t> codes, In<T> table) {
  const uint32_t* from = codes.data();
  const size_t count = codes.size();
  const uint32_t most = without_gil([&] {
    return fastest([=](auto) SPARSEWIRE_FLATTEN {
      uint32_t largest = 0;
      for (size_t i = 0; i < count; ++i) largest = std::max(largest, from[i]);
      return largest;
    });
  });
  require(count == 0 || most < table.size(), "a code is beyond its table");
  Buffer<T> out(count);
  without_gil([&] {
    const T* numbers = table.data();
    T* to = out.data();
    for (size_t i = 0; i < count; ++i) to[i] = numbers[from[i]];
  });
  return out.release();
}

template <class T>
void bind(nb::module_& m) {
  using nb::arg;
  m.def("range_float_encode", &range_float_encode<T>, arg("values").noconvert(), arg("shift"), arg("above"),
        arg("below"));
  m.def("range_float_error", &range_float_error<T>, arg("values").noconvert(), arg("shift"), arg("above"), arg("below"),
        arg("scale"));
  m.def("lookup", &lookup<T>, arg("codes").noconvert(), arg("table").noconvert());
}

const Binder binder([](nb::module_& m) {
  bind<float>(m);
  bind<double>(m);
});

}  // namespace
}  // namespace sparsewire
