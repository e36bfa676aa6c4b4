// The largest entries of one sign: Sparse Binary Compression's selection.
#include "select_take.hpp"

namespace sparsewire {
namespace {

template <class T>
Bits<T> largest(const T* values, size_t n) {
  Bits<T> most = 0;
  for (size_t i = 0; i < n; ++i) most = std::max(most, magnitude(values[i]));
  return most;
}

// Σ |value| / top by ascending index.
template <class T>
double share(const T* values, size_t n, double top) {
  double sum = 0;
  for (size_t i = 0; i < n; ++i) sum += std::fabs(static_cast<double>(values[i])) / top;
  return sum;
}

template <class T>
bool prefer_first(const T* first, size_t n, const T* second, size_t m) {
  const Bits<T> most = largest(first, n), other = largest(second, m), bits = std::max(most, other);
  if (bits >= kInfinity<T>) return most >= kInfinity<T>;
  T top;
  std::memcpy(&top, &bits, sizeof top);
  return share(first, n, top) >= share(second, m, top);
}

template <class T, class Index>
nb::object choose(Dense<T> dense, size_t k) {
  Chosen<T, Index> plus(k), minus(k);
  bool positive;
  {
    nb::gil_scoped_release release;
    dense.sign = Sign::plus;
    take_topk(dense, k, plus);
    dense.sign = Sign::minus;
    take_topk(dense, k, minus);
    positive = prefer_first(plus.values(), plus.size(), minus.values(), minus.size());
  }
  return positive ? plus.release() : minus.release();
}

template <class T>
nb::object one_sign_of(const Dense<T>& dense, int64_t k) {
  check_count(k, dense.size);
  return fits_int32(dense.size) ? choose<T, int32_t>(dense, k) : choose<T, int64_t>(dense, k);
}

template <class T>
nb::object one_sign(const In<T>& x, int64_t k, int threads) {
  return one_sign_of(Dense<T>{x.data(), x.size(), threads}, k);
}

template <class T>
nb::object one_sign_sum(const In<T>& residual, const In<T>& x, int64_t k, double decay, double gain, int threads) {
  return one_sign_of(Dense<T>{x.data(), x.size(), threads, terms_of(residual, x, decay, gain)}, k);
}

template <class T>
void bind(nb::module_& m) {
  using nb::arg;
  m.def("one_sign", &one_sign<T>, arg("x").noconvert(), arg("k"), arg("threads") = 1);
  m.def("one_sign_sum", &one_sign_sum<T>, arg("residual").noconvert(), arg("x").noconvert(), arg("k"),
        arg("decay") = 1.0, arg("gain") = 1.0, arg("threads") = 1);
}

const Binder binder([](nb::module_& m) {
  bind<float>(m);
  bind<double>(m);
});

}  // namespace
}  // namespace sparsewire
