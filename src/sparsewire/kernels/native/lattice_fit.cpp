// The grid that is just fine enough for a wanted error, or two levels. Every float64 operation is that of the reference.
#include <nanobind/stl/optional.h>

#include "lattice_cells.hpp"

namespace sparsewire {
namespace {

constexpr size_t kSample = 4096, kListed = 16;
constexpr double kFine = 256, kClose = 0.97, kInfinity = std::numeric_limits<double>::infinity();
constexpr double kSmallest = 0x1p-80, kLargest = std::numeric_limits<float>::max(), kSmallestUnit = 0x1p-133;

size_t stride_of(size_t count) { return std::max<size_t>(1, count / kSample + (count % kSample != 0)); }

void check(double wanted) { require(wanted >= 0.0001 && wanted <= 1, "a wanted error is out of range"); }

// --- two levels --------------------------------------------------------------------------------------------------

using Levels = std::optional<std::pair<double, double>>;

struct Sums {
  double signed_sum = 0, total = 0, energy = 0;
  size_t count = 0, under = 0;

  Levels levels(double wanted) const {
    const double n = static_cast<double>(count), below = static_cast<double>(under), above = n - below;
    if (!(count && kSmallest * n <= total && total < kLargest)) return {};
    const double near = (1 - wanted * wanted * (1 - 1e-6)) * energy;
    if (total * total / n >= near && under && under < count) return std::make_pair(total / n, -total / n);
    const double high = (total + signed_sum) / 2 / std::max(1.0, above);
    const double low = (signed_sum - total) / 2 / std::max(1.0, below);
    if (!(above * high * high + below * low * low >= near)) return {};
    return std::make_pair(under < count ? high : low, under ? low : high);
  }
};

template <class T>
Sums sums(const T* values, size_t count, size_t stride) {
  Sums sums;
  for (size_t i = 0; i < count; i += stride) {
    const double value = values[i];
    sums.signed_sum += value;
    sums.total += std::abs(value);
    sums.energy += value * value;
    sums.under += std::signbit(value);
    ++sums.count;
  }
  return sums;
}

template <class T>
Levels lattice_levels(In<T> values, double wanted) {
  check(wanted);
  return without_gil([&, from = values.data(), count = values.size()]() -> Levels {
    const size_t stride = stride_of(count);
    if (stride > 1 && !sums(from, count, stride).levels(1.05 * wanted)) return {};
    return sums(from, count, 1).levels(wanted);
  });
}

// --- a grid for a unit -------------------------------------------------------------------------------------------

// The upper half of a float32, rounded towards zero.
double to_short(double number) {
  float narrow = static_cast<float>(std::min(number, kLargest));
  uint32_t bits;
  std::memcpy(&bits, &narrow, 4);
  bits &= 0xFFFF0000;
  std::memcpy(&narrow, &bits, 4);
  return narrow;
}

struct Grid {
  double start = 0, unit = 0, error = 0;
  uint8_t offsets[kListed + 1] = {};
  size_t listed = 0;
  bool alone = false;  // whether all that are inside are in the first cell
};

Tally add(const Tally& a, const Tally& b, int64_t sign) {
  return {a.above + sign * b.above, a.under + sign * b.under, a.sum + sign * b.sum, a.squares + sign * b.squares};
}

int64_t count_of(const Tally& row) { return row.above + row.under; }

// The mean of units whose halves are at 2f + 1.
int64_t offset_of(const Tally& row) {
  const int64_t count = count_of(row);
  return count ? std::min<int64_t>(255, row.sum / count + 1) : 128;
}

// 4 × the squared error that an offset leaves.
int64_t left_by(const Tally& row, int64_t offset) {
  const int64_t away = 1 - 2 * offset;
  return 4 * row.squares + 4 * away * row.sum + count_of(row) * away * away;
}

// Whether 8 bits for an offset save more elsewhere.
bool worth_a_byte(const Tally& row, const Tally& rest) {
  const int64_t apart = offset_of(row) - offset_of(rest);
  return count_of(row) * apart * apart > 60000;
}

// Sets the offsets; returns the squared error that they leave.
double place_points(const Tally* rows, Grid& grid) {
  Tally rest{};
  for (size_t bin = 0; bin < kBins; ++bin) rest = add(rest, rows[bin], 1);
  grid.alone = count_of(rest) == count_of(rows[0]);
  const int64_t enough = std::max<int64_t>(16, count_of(rest) >> 6);
  size_t listed = 0;
  for (; listed < kListed && count_of(rows[listed]) >= enough; ++listed) rest = add(rest, rows[listed], -1);
  for (; listed && !worth_a_byte(rows[listed - 1], rest); --listed) rest = add(rest, rows[listed - 1], 1);
  int64_t left = left_by(rows[kBins], 0);
  for (size_t cell = 0; cell <= listed; ++cell) {
    const Tally& row = cell < listed ? rows[cell] : rest;
    grid.offsets[cell] = static_cast<uint8_t>(offset_of(row));
    left += left_by(row, offset_of(row));
  }
  grid.listed = listed;
  return static_cast<double>(left) / 4;
}

template <class T>
class Fitter {
 public:
  Fitter(double smallest, int32_t* codes) : smallest_(smallest), codes_(codes) {}

  // Leaves codes and tallies of the values; what was done last is not done again.
  const Grid& fit(const T* values, size_t count, double unit) {
    unit = std::max(to_short(unit), kSmallestUnit);
    if (values == values_ && unit == grid_.unit) return grid_;
    values_ = values;
    const double start = to_short(smallest_ < kFine * unit / 16 ? 0.6 * kFine * unit : smallest_), scale = 1 / unit;
    std::fill_n(rows_, kRows, Tally{});
    fastest([=, codes = codes_, rows = rows_, &packed = packed_](auto)
                SPARSEWIRE_FLATTEN { cells(values, count, start, scale, codes, rows, packed); });
    grid_ = {};
    grid_.start = start;
    grid_.unit = unit;
    const double root = std::sqrt(static_cast<double>(count));
    grid_.error = unit * std::sqrt(place_points(rows_, grid_)) + 0.5 * unit * root;
    return grid_;
  }

  const Tally* rows() const { return rows_; }

 private:
  double smallest_;
  int32_t* codes_;
  const T* values_ = nullptr;
  Grid grid_;
  Packed packed_;
  Tally rows_[kRows];
};

// --- the search for the unit -------------------------------------------------------------------------------------

// A unit whose error per value is just below `allowed`.
template <class T>
double search(Fitter<T>& fitter, const T* sample, size_t count, double allowed) {
  const double root = std::sqrt(static_cast<double>(count));
  double unit = allowed * std::sqrt(12.0) / kFine, good = 0, bad = kInfinity;
  for (int turn = 0; turn < 10; ++turn) {
    const Grid& grid = fitter.fit(sample, count, unit);
    const double ratio = grid.error / root / allowed;
    (ratio <= 1 ? good : bad) = grid.unit;
    if (bad < 1.01 * good || (ratio <= 1 && (ratio >= kClose || grid.alone))) break;
    unit = grid.unit * std::min(4.0, std::max(0.25, 0.988 / ratio));
    if (!(good < unit && unit < bad)) unit = std::sqrt(good * bad);
  }
  return good > 0 ? good : unit;
}

template <class T>
bool many_cells(Fitter<T>& fitter, const T* values, size_t count, double allowed, Grid& grid) {
  const size_t stride = stride_of(count);
  std::vector<T> sample;
  if (stride > 1)
    for (size_t i = 0; i < count; i += stride) sample.push_back(values[i]);
  const double each = (stride > 1 ? 0.99 : 1.0) * allowed / std::sqrt(static_cast<double>(count));
  double unit = stride > 1 ? search<T>(fitter, sample.data(), sample.size(), each)
                           : search<T>(fitter, values, count, each);
  for (int turn = 0; turn < 12; ++turn) {
    grid = fitter.fit(values, count, unit);
    if (grid.error <= allowed) return true;
    unit = grid.unit * std::max(0.5, 0.985 * allowed / grid.error);
  }
  return false;
}

// Whether there is a grid: codes and counts (above 0 and below, for each bin) are filled then.
template <class T>
bool find(const T* values, size_t count, double wanted, int32_t* codes, int64_t* counts, Grid& grid) {
  const auto [smallest, largest, energy] =
      fastest([=](auto) SPARSEWIRE_FLATTEN { return scan(values, count); });
  if (largest != 0 && !(kSmallest <= largest && largest <= kLargest)) return false;
  Fitter<T> fitter(smallest, codes);
  if (largest == 0)
    grid = fitter.fit(values, count, 1);
  else if (!many_cells(fitter, values, count, wanted * std::sqrt(energy) * (1 - 1e-6), grid))
    return false;
  for (size_t row = 0; row < kRows; ++row) {
    counts[2 * row] = fitter.rows()[row].above;
    counts[2 * row + 1] = fitter.rows()[row].under;
  }
  return true;
}

using Found = std::tuple<double, double, Out<uint8_t>, Out<int32_t>, Out<int64_t>>;

template <class T>
std::optional<Found> lattice_fit(In<T> values, double wanted) {
  check(wanted);
  Buffer<int32_t> codes(values.size());
  Buffer<int64_t> counts(2 * kRows);
  Grid grid;
  if (!without_gil([&] { return find(values.data(), values.size(), wanted, codes.data(), counts.data(), grid); }))
    return {};
  Buffer<uint8_t> offsets(grid.listed + 1);
  std::copy_n(grid.offsets, grid.listed + 1, offsets.data());
  return Found(grid.start, grid.unit, offsets.release(), codes.release(), counts.release());
}

template <class T>
void bind(nb::module_& m) {
  m.def("lattice_levels", &lattice_levels<T>, nb::arg("values").noconvert(), nb::arg("wanted"));
  m.def("lattice_fit", &lattice_fit<T>, nb::arg("values").noconvert(), nb::arg("wanted"));
}

const Binder binder([](nb::module_& m) {
  bind<float>(m);
  bind<double>(m);
});

}  // namespace
}  // namespace sparsewire
