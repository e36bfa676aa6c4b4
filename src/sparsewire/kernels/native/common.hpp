// What every native kernel shares: array types, owned outputs, instruction sets, threads.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <new>
#include <stdexcept>
#include <thread>
#include <vector>

namespace nb = nanobind;

namespace sparsewire {

template <class T>
using In = nb::ndarray<const T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
template <class T>
using InOut = nb::ndarray<T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
template <class T>
using Out = nb::ndarray<nb::numpy, T, nb::ndim<1>>;

// An uninitialised array that a kernel fills and NumPy then owns. `release` may shorten it.
template <class T>
class Buffer {
 public:
  explicit Buffer(size_t size) : data_(static_cast<T*>(std::malloc(size ? size * sizeof(T) : 1))), size_(size) {
    if (!data_) throw std::bad_alloc();
  }
  ~Buffer() { std::free(data_); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  T* data() { return data_; }
  size_t size() const { return size_; }

  // Needs the GIL.
  Out<T> release(size_t size) {
    T* data = data_;
    data_ = nullptr;
    nb::capsule owner(data, [](void* p) noexcept { std::free(p); });
    return Out<T>(data, {size}, owner);
  }
  Out<T> release() { return release(size_); }

 private:
  T* data_;
  size_t size_;
};

// Scratch that a thread keeps between calls: a fresh big buffer costs more in page faults than the work in it.
template <class T>
class Scratch {
 public:
  T* take(size_t size) {
    if (size > data_.size()) data_.resize(size);
    return data_.data();
  }

 private:
  std::vector<T> data_;
};

enum class Isa { plain = 0, avx2 = 1, avx512 = 2 };
Isa isa();  // the best this machine has, unless `set_isa` chose a lesser one

inline void require(bool holds, const char* message) {
  if (!holds) throw std::invalid_argument(message);
}

// Runs f(part) for part = 0 … parts−1, all but the first on threads of their own. f must not throw.
template <class F>
void parallel(int parts, F&& f) {
  std::vector<std::thread> others;
  for (int part = 1; part < parts; ++part) others.emplace_back([&f, part] { f(part); });
  f(0);
  for (auto& other : others) other.join();
}

// Each source file binds its own kernels: `static const Binder binder([](nb::module_& m) { … });`
class Binder {
 public:
  using Function = void (*)(nb::module_&);
  explicit Binder(Function function) { all().push_back(function); }
  static std::vector<Function>& all() {
    static std::vector<Function> functions;
    return functions;
  }
};

}  // namespace sparsewire
