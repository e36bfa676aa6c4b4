// One row of a count-sketch: adding to, looking up in and counting the buckets that ids hash to.
#include "permutation.hpp"

namespace sparsewire {
namespace {

constexpr uint64_t kMostBuckets = uint64_t{1} << 32;

struct Place {
  uint64_t random, buckets;
  SPARSEWIRE_INLINE size_t bucket() const { return (random >> 32) * buckets >> 32; }
  template <class T>
  SPARSEWIRE_INLINE T sign() const {
    return T(1) - T(2) * static_cast<T>(random & 1);
  }
};

// f(i, place) for every id, in order; the hashes of a batch are vector work.
template <class Index, class F>
SPARSEWIRE_INLINE void each(const Index* ids, size_t count, uint64_t buckets, uint64_t key, F&& f) {
  constexpr size_t kBatch = 256;
  uint64_t random[kBatch];
  for (size_t start = 0; start < count; start += kBatch) {
    const size_t size = std::min(kBatch, count - start);
    for (size_t i = 0; i < size; ++i) random[i] = mix(key + (static_cast<uint64_t>(ids[start + i]) + 1) * kGolden);
    for (size_t i = 0; i < size; ++i) f(start + i, Place{random[i], buckets});
  }
}

uint64_t buckets_of(size_t numbers, size_t ids, int64_t width) {
  require(width >= 1 && numbers % width == 0 && numbers / width <= kMostBuckets && (ids == 0 || numbers > 0),
          "the table has no buckets of this width for the entries");
  return numbers / width;
}

template <class T, class Index>
void sketch_insert(const InOut<T>& table, const In<Index>& ids, const In<T>& values, int64_t width_, uint64_t key) {
  const uint64_t buckets = buckets_of(table.size(), ids.size(), width_);
  const size_t width = width_;
  require(values.size() % width == 0 && values.size() / width == ids.size(), "an entry has `width` numbers");
  without_gil([&] {
    fastest([=, to = table.data(), from = values.data(), at = ids.data(), count = ids.size()](auto) SPARSEWIRE_FLATTEN {
      if (width == 1)
        return each(at, count, buckets, key, [=](size_t i, Place place) SPARSEWIRE_FLATTEN {
          to[place.bucket()] += from[i] * place.template sign<T>();
        });
      each(at, count, buckets, key, [=](size_t i, Place place) SPARSEWIRE_FLATTEN {
        T* bucket = to + place.bucket() * width;
        const T sign = place.template sign<T>();
        for (size_t j = 0; j < width; ++j) bucket[j] += from[i * width + j] * sign;
      });
    });
  });
}

template <class T, class Index>
Out<T> sketch_query(const In<T>& table, const In<Index>& ids, int64_t width_, uint64_t key) {
  const uint64_t buckets = buckets_of(table.size(), ids.size(), width_);
  const size_t width = width_;
  require(ids.size() <= PTRDIFF_MAX / sizeof(T) / width, "so many numbers do not fit into memory");
  Buffer<T> out(ids.size() * width);
  without_gil([&] {
    fastest([=, from = table.data(), to = out.data(), at = ids.data(), count = ids.size()](auto) SPARSEWIRE_FLATTEN {
      if (width == 1)
        return each(at, count, buckets, key, [=](size_t i, Place place) SPARSEWIRE_FLATTEN {
          to[i] = from[place.bucket()] * place.template sign<T>();
        });
      each(at, count, buckets, key, [=](size_t i, Place place) SPARSEWIRE_FLATTEN {
        const T* bucket = from + place.bucket() * width;
        const T sign = place.template sign<T>();
        for (size_t j = 0; j < width; ++j) to[i * width + j] = bucket[j] * sign;
      });
    });
  });
  return out.release();
}

template <class Index>
Out<int32_t> sketch_load(const In<Index>& ids, uint64_t buckets, uint64_t key) {
  require(buckets <= kMostBuckets && (ids.size() == 0 || buckets > 0), "no table has so many buckets");
  Buffer<int32_t> out(buckets);
  without_gil([&] {
    std::fill_n(out.data(), buckets, 0);
    fastest([=, to = out.data(), at = ids.data(), count = ids.size()](auto) SPARSEWIRE_FLATTEN {
      each(at, count, buckets, key, [=](size_t, Place place) SPARSEWIRE_FLATTEN { ++to[place.bucket()]; });
    });
  });
  return out.release();
}

template <class T, class Index>
void bind(nb::module_& m) {
  using nb::arg;
  const auto table = arg("table").noconvert(), ids = arg("ids").noconvert(), values = arg("values").noconvert();
  m.def("sketch_insert", &sketch_insert<T, Index>, table, ids, values, arg("width"), arg("key"));
  m.def("sketch_query", &sketch_query<T, Index>, table, ids, arg("width"), arg("key"));
}

const Binder binder([](nb::module_& m) {
  bind<float, int32_t>(m);
  bind<float, int64_t>(m);
  bind<double, int32_t>(m);
  bind<double, int64_t>(m);
  m.def("sketch_load", &sketch_load<int32_t>, nb::arg("ids").noconvert(), nb::arg("buckets"), nb::arg("key"));
  m.def("sketch_load", &sketch_load<int64_t>, nb::arg("ids").noconvert(), nb::arg("buckets"), nb::arg("key"));
});

}  // namespace
}  // namespace sparsewire
