// What every native kernel shares: array types, owned outputs, instruction sets, threads.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <stdexcept>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#define SPARSEWIRE_FLATTEN __attribute__((always_inline))
#define SPARSEWIRE_INLINE inline SPARSEWIRE_FLATTEN

namespace nb = nanobind;

namespace sparsewire {

template <class T>
using In = nb::ndarray<const T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
template <class T>
using InOut = nb::ndarray<T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
template <class T>
using Out = nb::ndarray<nb::numpy, T, nb::ndim<1>>;

// Freed outputs wait here for the next call: touching fresh pages costs more than most kernels do. A few blocks only,
// and not so much in all that keeping them would be felt.
class Recycler {
 public:
  static void* take(size_t bytes);  // at least one byte; throws std::bad_alloc
  static void give(void* data, size_t bytes) noexcept;
};

// An uninitialised array that a kernel fills and NumPy then owns. `release` may shorten it.
template <class T>
class Buffer {
 public:
  explicit Buffer(size_t size) : data_(static_cast<T*>(Recycler::take(bytes_of(size)))), size_(size) {}
  ~Buffer() {
    if (data_) Recycler::give(data_, bytes_of(size_));
  }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  T* data() { return data_; }
  size_t size() const { return size_; }

  // Needs the GIL.
  Out<T> release(size_t size) {
    auto held = std::make_unique<Held>(Held{data_, bytes_of(size_)});
    nb::capsule owner(held.get(), [](void* p) noexcept {
      std::unique_ptr<Held> held(static_cast<Held*>(p));
      Recycler::give(held->data, held->bytes);
    });
    held.release();
    return Out<T>(std::exchange(data_, nullptr), {size}, owner);
  }
  Out<T> release() { return release(size_); }

 private:
  struct Held {
    void* data;
    size_t bytes;
  };
  static size_t bytes_of(size_t size) {
    if (size > PTRDIFF_MAX / sizeof(T)) throw std::bad_alloc();
    return size * sizeof(T);
  }
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

// Runs f(part) for part = 0 … parts−1, all but the first on threads of their own, or on this one if the system gives no
// more. f must not throw.
template <class F>
void parallel(int parts, F&& f) {
  std::vector<std::thread> others;
  others.reserve(static_cast<size_t>(std::max(parts, 1)));
  int part = 1;
  try {
    for (; part < parts; ++part) others.emplace_back([&f, part] { f(part); });
  } catch (const std::system_error&) {
  }
  f(0);
  for (; part < parts; ++part) f(part);
  for (auto& other : others) other.join();
}

// Runs f(at, stop) on the blocks of x[begin … end), one after the other. The first is shorter, so that all others begin
// with a cache line: vectors that straddle two lines cost time.
template <class T, class F>
SPARSEWIRE_INLINE void each_block(const T* x, size_t begin, size_t end, size_t block, F&& f) {
  const size_t before_line = (64 - reinterpret_cast<uintptr_t>(x + begin) % 64) % 64 / sizeof(T);
  size_t stop = std::min(end, begin + before_line);
  if (stop > begin) f(begin, stop);
  for (size_t at = stop; at < end; at = stop) {
    stop = std::min(end, at + block);
    f(at, stop);
  }
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
