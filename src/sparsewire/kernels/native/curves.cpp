// chord_knots, poly_fit, poly_eval: curves cut into segments and fitted with polynomials.
#include <algorithm>
#include <cmath>

#include "bitio.hpp"

namespace sparsewire {
namespace {

constexpr int kMostDegree = 15, kLanes = 8;

struct Cut {
  double distance;
  int64_t at;
};

// The point furthest from the chord that leaves `least` points on both sides.
Cut furthest(const double* curve, int64_t start, int64_t stop, int64_t least) {
  const int64_t first = start + least, last = std::min(stop - least, stop - 1);
  if (start + least > stop - least) return {0.0, start};
  const double slope = (curve[stop - 1] - curve[start]) / static_cast<double>(std::max<int64_t>(1, stop - 1 - start));
  Cut best{-1.0, first};
  for (int64_t i = first; i <= last; ++i) {
    const double distance = std::fabs(curve[i] - (curve[start] + slope * static_cast<double>(i - start)));
    if (distance > best.distance) best = {distance, i};
  }
  return best;
}

std::vector<int64_t> knots(const double* curve, int64_t size, int64_t segments, int64_t least) {
  std::vector<int64_t> cuts{0, size};
  std::vector<Cut> found;
  if (size) found.push_back(furthest(curve, 0, size, least));
  while (static_cast<int64_t>(cuts.size()) <= segments && !found.empty()) {
    const auto best = std::max_element(found.begin(), found.end(),
                                       [](const Cut& a, const Cut& b) { return a.distance < b.distance; });
    if (!(best->distance > 0)) break;
    const int64_t at = best->at;
    const size_t place = best - found.begin();
    cuts.insert(cuts.begin() + place + 1, at);
    found[place] = furthest(curve, cuts[place], at, least);
    found.insert(found.begin() + place + 1, furthest(curve, at, cuts[place + 2], least));
  }
  return cuts;
}

Out<int64_t> chord_knots(In<double> curve, int64_t segments, int64_t least) {
  require(segments >= 1 && least >= 1, "a curve has at least one segment, a segment one point");
  std::vector<int64_t> cuts;
  {
    nb::gil_scoped_release release;
    cuts = knots(curve.data(), static_cast<int64_t>(curve.size()), segments, least);
  }
  Buffer<int64_t> out(cuts.size());
  std::copy(cuts.begin(), cuts.end(), out.data());
  return out.release();
}

// Polynomials orthogonal on even points of [−1, 1] by their three-term recurrence, point by point.
struct Gram {
  Gram(int64_t size, int degree) : size(size), degree(degree), span(static_cast<double>(std::max<int64_t>(1, size - 1))) {
    norm[0] = static_cast<double>(size);
    b[0] = 0.0;
    for (int j = 1; j <= degree; ++j) {
      const double rest = static_cast<double>(j * j) * static_cast<double>(size * size - j * j);
      b[j] = rest / (static_cast<double>(4 * j * j - 1) * span * span);
      norm[j] = norm[j - 1] * b[j];
    }
  }

  int64_t size;
  int degree;
  double span, norm[kMostDegree + 1], b[kMostDegree + 1];
};

// One polynomial after the other at kLanes points side by side, so that the compiler can use vectors.
struct Lanes {
  SPARSEWIRE_INLINE Lanes(const Gram& gram, int64_t first) {
    const double start = static_cast<double>(first), last = static_cast<double>(gram.size) - 1.0;
    for (int l = 0; l < kLanes; ++l) {
      t[l] = (2.0 * (start + static_cast<double>(l)) - last) / gram.span;
      p[l] = 1.0;
      before[l] = 0.0;
    }
  }

  SPARSEWIRE_INLINE void next(double b) {
    for (int l = 0; l < kLanes; ++l) {
      const double after = t[l] * p[l] - b * before[l];
      before[l] = p[l];
      p[l] = after;
    }
  }

  double t[kLanes], p[kLanes], before[kLanes];
};

void check(const In<int64_t>& cuts, int64_t size, int64_t degree) {
  require(degree >= 0 && degree <= kMostDegree, "a degree lies in 0…15");
  require(cuts.size() >= 2 && cuts.data()[0] == 0 && cuts.data()[cuts.size() - 1] == size, "the cuts miss the curve");
  for (size_t i = 1; i < cuts.size(); ++i) require(cuts.data()[i - 1] < cuts.data()[i], "the cuts do not ascend");
}

SPARSEWIRE_INLINE void fit(const double* curve, int64_t size, int degree, double* row) {
  const Gram gram(size, std::min<int64_t>(degree, size - 1));
  double sum[kMostDegree + 1] = {};
  for (int64_t i = 0; i < size; i += kLanes) {
    Lanes at(gram, i);
    double y[kLanes] = {}, product[kLanes];  // zeros behind the end add nothing
    std::copy(curve + i, curve + std::min<int64_t>(size, i + kLanes), y);
    for (int j = 0; j <= gram.degree; ++j) {
      for (int l = 0; l < kLanes; ++l) product[l] = y[l] * at.p[l];
      for (int l = 0; l < kLanes; ++l) sum[j] += product[l];
      at.next(gram.b[j]);
    }
  }
  for (int j = 0; j <= degree; ++j) row[j] = j <= gram.degree ? sum[j] / gram.norm[j] : 0.0;
}

Out<double> poly_fit(In<double> curve, In<int64_t> cuts, int64_t degree) {
  check(cuts, static_cast<int64_t>(curve.size()), degree);
  const size_t width = degree + 1, segments = cuts.size() - 1;
  Buffer<double> out(segments * width);
  {
    nb::gil_scoped_release release;
    const int64_t* cut = cuts.data();
    fastest([&](auto) SPARSEWIRE_FLATTEN {
      for (size_t s = 0; s < segments; ++s)
        fit(curve.data() + cut[s], cut[s + 1] - cut[s], static_cast<int>(degree), out.data() + s * width);
    });
  }
  return out.release();
}

SPARSEWIRE_INLINE void evaluate(const double* row, int degree, int64_t size, double* out) {
  const Gram gram(size, std::min<int64_t>(degree, size - 1));
  for (int64_t i = 0; i < size; i += kLanes) {
    Lanes at(gram, i);
    double total[kLanes] = {};
    for (int j = 0; j <= gram.degree; ++j) {
      for (int l = 0; l < kLanes; ++l) total[l] = total[l] + row[j] * at.p[l];
      at.next(gram.b[j]);
    }
    std::copy(total, total + std::min<int64_t>(kLanes, size - i), out + i);
  }
}

Out<double> poly_eval(In<double> coefficients, In<int64_t> cuts) {
  require(cuts.size() >= 2 && coefficients.size() % (cuts.size() - 1) == 0 && coefficients.size() > 0,
          "the coefficients do not fit the cuts");
  const int64_t degree = static_cast<int64_t>(coefficients.size() / (cuts.size() - 1)) - 1;
  const int64_t size = cuts.data()[cuts.size() - 1];
  check(cuts, size, degree);
  Buffer<double> out(size);
  {
    nb::gil_scoped_release release;
    const int64_t* cut = cuts.data();
    fastest([&](auto) SPARSEWIRE_FLATTEN {
      const double* row = coefficients.data();
      for (size_t s = 0; s + 1 < cuts.size(); ++s, row += degree + 1)
        evaluate(row, static_cast<int>(degree), cut[s + 1] - cut[s], out.data() + cut[s]);
    });
  }
  return out.release();
}

const Binder binder([](nb::module_& m) {
  m.def("chord_knots", &chord_knots, nb::arg("curve"), nb::arg("segments"), nb::arg("least"));
  m.def("poly_fit", &poly_fit, nb::arg("curve"), nb::arg("cuts"), nb::arg("degree"));
  m.def("poly_eval", &poly_eval, nb::arg("coefficients"), nb::arg("cuts"));
});

}  // namespace
}  // namespace sparsewire
