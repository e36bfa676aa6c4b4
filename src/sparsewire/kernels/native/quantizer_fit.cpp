// The quantizer with the largest step that keeps a wanted error, or two levels. Every float64 operation is that of the
// reference.
#include <nanobind/stl/optional.h>

#include "quantizer_bins.hpp"

namespace sparsewire {
namespace {

constexpr size_t kSample = 4096, kListed = 16;
constexpr double kUnits = 256, kClose = 0.97, kInfinity = std::numeric_limits<double>::infinity();
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
Levels two_level_fit(In<T> values, double wanted) {
  check(wanted);
  return without_gil([&, from = values.data(), count = values.size()]() -> Levels {
    const size_t stride = stride_of(count);
    if (stride > 1 && !sums(from, count, stride).levels(1.05 * wanted)) return {};
    return sums(from, count, 1).levels(wanted);
  });
}

// --- a quantizer for a unit --------------------------------------------------------------------------------------

// Rounded to bf16 towards zero.
double to_bf16(double number) {
  float narrow = static_cast<float>(std::min(number, kLargest));
  uint32_t bits;
  std::memcpy(&bits, &narrow, 4);
  bits &= 0xFFFF0000;
  std::memcpy(&narrow, &bits, 4);
  return narrow;
}

struct Quantizer {
  double start = 0, unit = 0, error = 0;
  uint8_t offsets[kListed + 1] = {};
  size_t listed = 0;
  bool alone = false;  // whether all values outside the dead zone are in the first bin
};

Tally add(const Tally& a, const Tally& b, int64_t sign) {
  return {a.above + sign * b.above, a.under + sign * b.under, a.sum + sign * b.sum, a.squares + sign * b.squares};
}

int64_t count_of(const Tally& row) { return row.above + row.under; }

// The mean of values in the middle of their units: at 2f + 1 half-units for unit f.
int64_t offset_of(const Tally& row) {
  const int64_t count = count_of(row);
  return count ? std::min<int64_t>(255, row.sum / count + 1) : 128;
}

// 4 × the squared error with that reconstruction offset.
int64_t left_by(const Tally& row, int64_t offset) {
  const int64_t away = 1 - 2 * offset;
  return 4 * row.squares + 4 * away * row.sum + count_of(row) * away * away;
}

// Whether 8 bits for an offset save more elsewhere.
bool worth_a_byte(const Tally& row, const Tally& rest) {
  const int64_t apart = offset_of(row) - offset_of(rest);
  return count_of(row) * apart * apart > 60000;
}

// Sets the reconstruction offsets; returns the squared error that they leave.
double set_offsets(const Tally* rows, Quantizer& quantizer) {
  Tally rest{};
  for (size_t row = 0; row < kClasses; ++row) rest = add(rest, rows[row], 1);
  quantizer.alone = count_of(rest) == count_of(rows[0]);
  const int64_t enough = std::max<int64_t>(16, count_of(rest) >> 6);
  size_t listed = 0;
  for (; listed < kListed && count_of(rows[listed]) >= enough; ++listed) rest = add(rest, rows[listed], -1);
  for (; listed && !worth_a_byte(rows[listed - 1], rest); --listed) rest = add(rest, rows[listed - 1], 1);
  int64_t left = left_by(rows[kClasses], 0);
  for (size_t bin = 0; bin <= listed; ++bin) {
    const Tally& row = bin < listed ? rows[bin] : rest;
    quantizer.offsets[bin] = static_cast<uint8_t>(offset_of(row));
    left += left_by(row, offset_of(row));
  }
  quantizer.listed = listed;
  return static_cast<double>(left) / 4;
}

template <class T>
class Fitter {
 public:
  Fitter(double smallest, int32_t* bin_indices) : smallest_(smallest), bin_indices_(bin_indices) {}

  // Leaves bin indices and tallies of the values. Does nothing where the last call had the same values and unit.
  const Quantizer& fit(const T* values, size_t count, double unit) {
    unit = std::max(to_bf16(unit), kSmallestUnit);
    if (values == values_ && unit == quantizer_.unit) return quantizer_;
    values_ = values;
    const double start = to_bf16(smallest_ < kUnits * unit / 16 ? 0.6 * kUnits * unit : smallest_), scale = 1 / unit;
    std::fill_n(rows_, kRows, Tally{});
    fastest([=, bin_indices = bin_indices_, rows = rows_, &packed = packed_](auto)
                SPARSEWIRE_FLATTEN { assign_bins(values, count, start, scale, bin_indices, rows, packed); });
    quantizer_ = {};
    quantizer_.start = start;
    quantizer_.unit = unit;
    const double root = std::sqrt(static_cast<double>(count));
    quantizer_.error = unit * std::sqrt(set_offsets(rows_, quantizer_)) + 0.5 * unit * root;
    return quantizer_;
  }

  const Tally* rows() const { return rows_; }

 private:
  double smallest_;
  int32_t* bin_indices_;
  const T* values_ = nullptr;
  Quantizer quantizer_;
  Packed packed_;
  Tally rows_[kRows];
};

// --- the search for the unit -------------------------------------------------------------------------------------

// A unit whose error per value is just below `allowed`.
template <class T>
double search(Fitter<T>& fitter, const T* sample, size_t count, double allowed) {
  const double root = std::sqrt(static_cast<double>(count));
  double unit = allowed * std::sqrt(12.0) / kUnits, good = 0, bad = kInfinity;
  for (int turn = 0; turn < 10; ++turn) {
    const Quantizer& quantizer = fitter.fit(sample, count, unit);
    const double ratio = quantizer.error / root / allowed;
    (ratio <= 1 ? good : bad) = quantizer.unit;
    if (bad < 1.01 * good || (ratio <= 1 && (ratio >= kClose || quantizer.alone))) break;
    unit = quantizer.unit * std::min(4.0, std::max(0.25, 0.988 / ratio));
    if (!(good < unit && unit < bad)) unit = std::sqrt(good * bad);
  }
  return good > 0 ? good : unit;
}

template <class T>
bool uniform(Fitter<T>& fitter, const T* values, size_t count, double allowed, Quantizer& quantizer) {
  const size_t stride = stride_of(count);
  std::vector<T> sample;
  if (stride > 1)
    for (size_t i = 0; i < count; i += stride) sample.push_back(values[i]);
  const double each = (stride > 1 ? 0.99 : 1.0) * allowed / std::sqrt(static_cast<double>(count));
  double unit = stride > 1 ? search<T>(fitter, sample.data(), sample.size(), each)
                           : search<T>(fitter, values, count, each);
  for (int turn = 0; turn < 12; ++turn) {
    quantizer = fitter.fit(values, count, unit);
    if (quantizer.error <= allowed) return true;
    unit = quantizer.unit * std::max(0.5, 0.985 * allowed / quantizer.error);
  }
  return false;
}

// Whether there is a quantizer; bin indices and counts (above 0 and below, for each class) are filled then.
template <class T>
bool find(const T* values, size_t count, double wanted, int32_t* bin_indices, int64_t* counts, Quantizer& quantizer) {
  const auto [smallest, largest, energy] =
      fastest([=](auto) SPARSEWIRE_FLATTEN { return scan(values, count); });
  if (largest != 0 && !(kSmallest <= largest && largest <= kLargest)) return false;
  Fitter<T> fitter(smallest, bin_indices);
  if (largest == 0)
    quantizer = fitter.fit(values, count, 1);
  else if (!uniform(fitter, values, count, wanted * std::sqrt(energy) * (1 - 1e-6), quantizer))
    return false;
  for (size_t row = 0; row < kRows; ++row) {
    counts[2 * row] = fitter.rows()[row].above;
    counts[2 * row + 1] = fitter.rows()[row].under;
  }
  return true;
}

using Found = std::tuple<double, double, Out<uint8_t>, Out<int32_t>, Out<int64_t>>;

template <class T>
std::optional<Found> quantizer_fit(In<T> values, double wanted) {
  check(wanted);
  Buffer<int32_t> bin_indices(values.size());
  Buffer<int64_t> counts(2 * kRows);
  Quantizer quantizer;
  const bool found = without_gil(
      [&] { return find(values.data(), values.size(), wanted, bin_indices.data(), counts.data(), quantizer); });
  if (!found) return {};
  Buffer<uint8_t> offsets(quantizer.listed + 1);
  std::copy_n(quantizer.offsets, quantizer.listed + 1, offsets.data());
  return Found(quantizer.start, quantizer.unit, offsets.release(), bin_indices.release(), counts.release());
}

template <class T>
void bind(nb::module_& m) {
  m.def("two_level_fit", &two_level_fit<T>, nb::arg("values").noconvert(), nb::arg("wanted"));
  m.def("quantizer_fit", &quantizer_fit<T>, nb::arg("values").noconvert(), nb::arg("wanted"));
}

const Binder binder([](nb::module_& m) {
  bind<float>(m);
  bind<double>(m);
});

}  // namespace
}  // namespace sparsewire
