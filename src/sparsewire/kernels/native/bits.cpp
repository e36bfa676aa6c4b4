// Fixed-width packing and bitmaps.
#include "bitio.hpp"

namespace sparsewire {
namespace {

template <class T>
Out<uint8_t> pack_bits(In<T> values, int64_t width) {
  require(width >= 0 && width <= int64_t{8 * sizeof(T)}, "values of this type do not have that many bits");
  const size_t size = bytes_of(values.size() * static_cast<uint64_t>(width));
  Buffer<uint8_t> out(size + BitWriter::kSlack);
  without_gil([&] {
    const T* data = values.data();
    uint8_t* to = out.data();
    fastest([=, count = values.size()](auto) SPARSEWIRE_FLATTEN {
      BitWriter writer(to);
      pack(data, count, static_cast<unsigned>(width), writer);
    });
  });
  return out.release(size);
}

// Zeros that take no memory until they are read: with width 0 there is no data to check a forged count against.
nb::object zeros(size_t count) {
  auto* data = static_cast<uint32_t*>(std::calloc(count ? count : 1, sizeof(uint32_t)));
  if (!data) throw std::bad_alloc();
  nb::capsule owner(data, [](void* p) noexcept { std::free(p); });
  return nb::cast(Out<uint32_t>(data, {count}, owner));
}

template <class T>
nb::object unpack_as(In<uint8_t> data, unsigned width, size_t count) {
  Buffer<T> out(count);
  without_gil([&] {
    fastest([=, from = data.data(), size = data.size(), to = out.data()](auto avx2) SPARSEWIRE_FLATTEN {
      unpack<decltype(avx2)::value>(from, size, 0, width, count, to);
    });
  });
  return nb::cast(out.release());
}

nb::object unpack_bits(In<uint8_t> data, int64_t width, int64_t count_) {
  require(width >= 0 && width <= 64, "not a width in bits");
  const size_t count = to_count(count_);
  require(width == 0 || count <= data.size() * 8 / static_cast<uint64_t>(width), "packed bits are missing");
  require(data.size() == bytes_of(count * static_cast<uint64_t>(width)), "there are more packed bits than values");
  if (width == 0) return zeros(count);
  return width <= 32 ? unpack_as<uint32_t>(data, static_cast<unsigned>(width), count)
                     : unpack_as<uint64_t>(data, static_cast<unsigned>(width), count);
}

template <class T>
Out<uint8_t> bitmap(In<T> indices, int64_t numel_) {
  const uint64_t numel = to_numel(numel_);
  Buffer<uint8_t> out(bytes_of(numel));
  without_gil([&] {
    const T* index = indices.data();
    uint8_t* bits = out.data();
    std::fill_n(bits, out.size(), uint8_t{0});
    for (size_t i = 0, count = indices.size(); i < count; ++i) {
      const auto position = static_cast<uint64_t>(index[i]);  // a negative index becomes huge
      require(position < numel, "an index is outside the bitmap");
      bits[position >> 3] |= static_cast<uint8_t>(1u << (position & 7));
    }
  });
  return out.release();
}

template <class T>
nb::object positions(In<uint8_t> data, size_t count) {
  Buffer<T> out(count + Ones::kSlack);
  without_gil([&] {
    fastest([=, from = data.data(), size = data.size(), to = out.data()](auto) SPARSEWIRE_FLATTEN {
      Ones(from, size).read(to, count);
    });
  });
  return nb::cast(out.release(count));
}

nb::object from_bitmap(In<uint8_t> data, int64_t numel_, int64_t count_) {
  const uint64_t numel = to_numel(numel_);
  const size_t count = to_count(count_), size = data.size();
  require(size == bytes_of(numel), "the bitmap does not have as many bits as there are elements");
  require(numel % 8 == 0 || data.data()[size - 1] >> numel % 8 == 0, "the bitmap has bits after its last");
  const uint64_t ones = without_gil([&] {
    return fastest([=, from = data.data()](auto) SPARSEWIRE_FLATTEN { return count_ones(from, size); });
  });
  require(ones == count, "the bitmap does not hold as many entries as announced");
  return wide_index(numel) ? positions<int64_t>(data, count) : positions<int32_t>(data, count);
}

const Binder binder([](nb::module_& m) {
  m.def("pack_bits", &pack_bits<uint32_t>, nb::arg("values").noconvert(), nb::arg("width"));
  m.def("pack_bits", &pack_bits<uint64_t>, nb::arg("values").noconvert(), nb::arg("width"));
  m.def("unpack_bits", &unpack_bits, nb::arg("data").noconvert(), nb::arg("width"), nb::arg("count"));
  m.def("bitmap", &bitmap<int32_t>, nb::arg("indices").noconvert(), nb::arg("numel"));
  m.def("bitmap", &bitmap<int64_t>, nb::arg("indices").noconvert(), nb::arg("numel"));
  m.def("from_bitmap", &from_bitmap, nb::arg("data").noconvert(), nb::arg("numel"), nb::arg("count"));
});

}  // namespace
}  // namespace sparsewire
