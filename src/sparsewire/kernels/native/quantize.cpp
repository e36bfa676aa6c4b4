// Counter-based randomness (splitmix64), a keyed permutation, stochastic quantization.
#include <limits>

#include "permutation.hpp"

namespace sparsewire {
namespace {

Out<uint64_t> mix64(In<uint64_t> x) {
  Buffer<uint64_t> out(x.size());
  without_gil([&] {
    fastest([from = x.data(), count = x.size(), to = out.data()](auto) SPARSEWIRE_FLATTEN {
      for (size_t i = 0; i < count; ++i) to[i] = mix(from[i]);
    });
  });
  return out.release();
}

Out<uint64_t> random_bits(uint64_t key, uint64_t start, int64_t count_) {
  const size_t count = to_count(count_);
  Buffer<uint64_t> out(count);
  without_gil([&] {
    fastest([=, to = out.data()](auto) SPARSEWIRE_FLATTEN {
      uint64_t state = key + (start + 1) * kGolden;
      for (size_t i = 0; i < count; ++i, state += kGolden) to[i] = mix(state);
    });
  });
  return out.release();
}

// --- permutation -------------------------------------------------------------------------------------------------

Out<uint64_t> permute(In<uint64_t> ids, uint64_t numel, uint64_t key) {
  const uint64_t* from = ids.data();
  const size_t count = ids.size();
  require(without_gil([&] { return std::all_of(from, from + count, [=](uint64_t id) { return id < numel; }); }),
          "an id is outside the permutation");
  Buffer<uint64_t> out(count);
  const Feistel feistel(numel, key);
  without_gil([&] {
    fastest([=, to = out.data()](auto) SPARSEWIRE_FLATTEN { walk(from, count, numel, feistel, to); });
  });
  return out.release();
}

// --- quantization ------------------------------------------------------------------------------------------------

template <class T>
using BitsOf = std::conditional_t<sizeof(T) == 4, int32_t, int64_t>;

template <class T>
SPARSEWIRE_INLINE BitsOf<T> to_bits(T x) {
  BitsOf<T> bits;
  std::memcpy(&bits, &x, sizeof(T));
  return bits;
}

template <class T>
SPARSEWIRE_INLINE T from_bits(BitsOf<T> bits) {
  T x;
  std::memcpy(&x, &bits, sizeof(T));
  return x;
}

// The bits of |x| as an integer, 0 if it is non-finite: the maximum of integers vectorises.
template <class T>
SPARSEWIRE_INLINE BitsOf<T> finite_magnitude(T x, bool* finite) {
  const BitsOf<T> bits = to_bits(x) & std::numeric_limits<BitsOf<T>>::max();
  *finite = bits < to_bits(std::numeric_limits<T>::infinity());
  return *finite ? bits : 0;
}

template <class T>
SPARSEWIRE_INLINE T largest(const T* values, size_t count) {
  BitsOf<T> top = 0;
  bool finite;
  for (size_t i = 0; i < count; ++i) top = std::max(top, finite_magnitude(values[i], &finite));
  return from_bits<T>(top);
}

struct Levels {
  unsigned bits;
  int64_t most, marker;  // the marker is the code of a non-finite value

  explicit Levels(int64_t bits_) : bits(static_cast<unsigned>(bits_)) {
    require(bits_ >= 1 && bits_ <= 32, "codes have 1 to 32 bits");
    most = (int64_t{1} << (bits - 1)) - 1;
    marker = (int64_t{1} << bits) - 1;
  }
  bool narrow() const { return bits <= 24; }  // levels are exact in a float and fit int32
};

// Integer is wide enough for any code. The operations and their order are part of the format.
template <class Integer, class T>
SPARSEWIRE_INLINE void quantize_some(const T* values, const uint32_t* noise, size_t count, T norm, Levels levels,
                                     uint32_t* codes) {
  const T divisor = norm > 0 ? norm : T{1}, top = static_cast<T>(levels.most);
  const Integer most = static_cast<Integer>(levels.most);
  const uint32_t marker = static_cast<uint32_t>(levels.marker);
  for (size_t i = 0; i < count; ++i) {
    bool finite;
    const T magnitude = from_bits<T>(finite_magnitude(values[i], &finite));
    const T scaled = magnitude / divisor * top + static_cast<T>(static_cast<int32_t>(noise[i])) * T(0x1p-24);
    const Integer level = static_cast<Integer>(scaled < top ? scaled : top);
    const Integer code = most + (to_bits(values[i]) < 0 ? -level : level);
    codes[i] = finite ? static_cast<uint32_t>(code) : marker;
  }
}

template <class Integer, class T>
SPARSEWIRE_INLINE void quantize_all(const T* values, size_t count, size_t bucket, Levels levels, uint64_t key,
                                    uint32_t* codes, T* norms) {
  constexpr size_t kChunk = 512;
  uint32_t noise[kChunk];
  uint64_t state = key;
  for (size_t start = 0; start < count; start += bucket) {
    const size_t end = start + std::min(bucket, count - start);
    const T norm = *norms++ = largest(values + start, end - start);
    for (size_t at = start; at < end; at += kChunk) {
      const size_t n = std::min(kChunk, end - at);
      for (size_t i = 0; i < n; ++i) noise[i] = static_cast<uint32_t>(mix_upper(state += kGolden) >> 40);
      quantize_some<Integer>(values + at, noise, n, norm, levels, codes + at);
    }
  }
}

size_t to_bucket(int64_t bucket, size_t count) {
  require(bucket >= 1, "a bucket has at least one value");
  return std::min(static_cast<size_t>(bucket), std::max<size_t>(count, 1));
}

template <class T>
auto quantize(In<T> array, int64_t bits, int64_t bucket_, uint64_t key) {
  const Levels levels(bits);
  const T* values = array.data();
  const size_t count = array.size(), bucket = to_bucket(bucket_, count);
  Buffer<uint32_t> codes(count);
  Buffer<T> norms(count / bucket + (count % bucket != 0));
  without_gil([&] {
    fastest([=, c = codes.data(), n = norms.data()](auto) SPARSEWIRE_FLATTEN {
      if (levels.narrow()) return quantize_all<int32_t>(values, count, bucket, levels, key, c, n);
      quantize_all<int64_t>(values, count, bucket, levels, key, c, n);
    });
  });
  auto first = codes.release();
  return std::make_pair(std::move(first), norms.release());
}

template <class Integer, class T>
SPARSEWIRE_INLINE void dequantize_all(const uint32_t* codes, size_t count, size_t bucket, Levels levels, const T* norms,
                                      T* out) {
  const Integer most = static_cast<Integer>(levels.most);
  const T top = static_cast<T>(levels.most);
  const uint32_t marker = static_cast<uint32_t>(levels.marker);
  const BitsOf<T> nan = to_bits(std::numeric_limits<T>::quiet_NaN());
  for (size_t start = 0; start < count; start += bucket) {
    T norm;
    std::memcpy(&norm, norms++, sizeof(T));  // norms often lie unaligned in a message
    for (size_t i = start, end = start + std::min(bucket, count - start); i < end; ++i) {
      const T value = norm * (static_cast<T>(static_cast<Integer>(codes[i]) - most) / top);
      // A mask, as a choice between floats would become a branch.
      const BitsOf<T> marked = -static_cast<BitsOf<T>>(codes[i] == marker);
      out[i] = from_bits<T>((to_bits(value) & ~marked) | (nan & marked));
    }
  }
}

SPARSEWIRE_INLINE uint32_t union_of(const uint32_t* codes, size_t count) {
  uint32_t any = 0;
  for (size_t i = 0; i < count; ++i) any |= codes[i];
  return any;
}

template <class T>
Out<T> dequantize(In<uint32_t> array, In<T> norms, int64_t bits, int64_t bucket_) {
  const Levels levels(bits);
  const uint32_t* codes = array.data();
  const size_t count = array.size(), bucket = to_bucket(bucket_, count);
  require(norms.size() == count / bucket + (count % bucket != 0), "codes and norms do not fit");
  const int64_t any = without_gil([&] {
    return fastest([=](auto) SPARSEWIRE_FLATTEN { return union_of(codes, count); });
  });
  require(any <= levels.marker, "a code is too large");
  Buffer<T> out(count);
  without_gil([&] {
    fastest([=, n = norms.data(), to = out.data()](auto) SPARSEWIRE_FLATTEN {
      if (levels.narrow()) return dequantize_all<int32_t>(codes, count, bucket, levels, n, to);
      dequantize_all<int64_t>(codes, count, bucket, levels, n, to);
    });
  });
  return out.release();
}

template <class T>
void bind(nb::module_& m) {
  m.def("quantize", &quantize<T>, nb::arg("values").noconvert(), nb::arg("bits"), nb::arg("bucket"), nb::arg("key"));
  m.def("dequantize", &dequantize<T>, nb::arg("codes").noconvert(), nb::arg("norms").noconvert(), nb::arg("bits"),
        nb::arg("bucket"));
}

const Binder binder([](nb::module_& m) {
  m.def("mix64", &mix64, nb::arg("x").noconvert());
  m.def("random_bits", &random_bits, nb::arg("key"), nb::arg("start"), nb::arg("count"));
  m.def("permute", &permute, nb::arg("ids").noconvert(), nb::arg("numel"), nb::arg("key"));
  bind<float>(m);
  bind<double>(m);
});

}  // namespace
}  // namespace sparsewire
