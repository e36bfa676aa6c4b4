// all_finite: reads the array once, up to the first non-finite value.
#include <atomic>

#include "common.hpp"

namespace sparsewire {
namespace {

constexpr size_t kBlock = 1 << 14;

// Only NaN and infinity have an exponent of all ones, so the largest magnitude is at least infinity if there are some.
// Inlined, so that the compiler vectorises it for the caller's instruction set.
template <class U>
inline __attribute__((always_inline)) U largest(const U* x, size_t n, U mask) {
  U most = 0;
  for (size_t i = 0; i < n; ++i) {
    U magnitude = x[i] & mask;
    most = magnitude > most ? magnitude : most;
  }
  return most;
}

template <class U>
U largest_plain(const U* x, size_t n, U mask) {
  return largest(x, n, mask);
}

#if defined(__x86_64__)
template <class U>
__attribute__((target("avx2"))) U largest_avx2(const U* x, size_t n, U mask) {
  return largest(x, n, mask);
}
#endif

template <class U>
bool finite_range(const U* x, size_t n, U mask, U infinity) {
  auto find = largest_plain<U>;
#if defined(__x86_64__)
  if (isa() != Isa::plain) find = largest_avx2<U>;
#endif
  for (size_t i = 0; i < n; i += kBlock)
    if (find(x + i, n - i < kBlock ? n - i : kBlock, mask) >= infinity) return false;
  return true;
}

// T and Int are equally wide; a non-finite sum has an exponent of all ones.
template <class T, class U>
bool all_finite(In<T> x, int threads) {
  const U* data = reinterpret_cast<const U*>(x.data());
  const U mask = ~U(0) >> 1;
  const U infinity = sizeof(T) == 4 ? U(0x7F800000u) : U(0x7FF0000000000000ull);
  size_t size = x.size();
  nb::gil_scoped_release release;
  const int parts = threads < 1 ? 1 : threads;
  std::atomic<bool> finite{true};
  parallel(parts, [&](int part) {
    size_t from = size * part / parts, to = size * (part + 1) / parts;
    if (!finite_range<U>(data + from, to - from, mask, infinity)) finite = false;
  });
  return finite;
}

const Binder binder([](nb::module_& m) {
  m.def("all_finite", &all_finite<float, uint32_t>, nb::arg("x"), nb::arg("threads") = 1);
  m.def("all_finite", &all_finite<double, uint64_t>, nb::arg("x"), nb::arg("threads") = 1);
});

}  // namespace
}  // namespace sparsewire
