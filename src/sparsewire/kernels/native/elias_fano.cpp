// Elias-Fano: the low bits of every index as they are, the high bits as the gaps of a bitmap.
#include "bitio.hpp"

namespace sparsewire {
namespace {

constexpr size_t kChunk = 2048;

unsigned width_for(uint64_t numel, uint64_t count) {
  const unsigned length = bit_length(numel / std::max<uint64_t>(1, count));
  return length ? length - 1 : 0;
}

int64_t elias_fano_width(int64_t numel, int64_t count) { return width_for(to_numel(numel), to_count(count)); }

// Whether the indices ascend; `high` has room for ascending ones only.
template <class T>
SPARSEWIRE_INLINE bool ascend(const T* index, size_t count) {
  bool bad = count && index[0] < 0;
  for (size_t i = 1; i < count; ++i) bad |= index[i] <= index[i - 1];
  return !bad;
}

template <class T>
SPARSEWIRE_INLINE size_t encode(const T* index, size_t count, unsigned width, uint8_t* low, uint8_t* high) {
  using U = std::make_unsigned_t<T>;
  BitWriter lows(low), highs(high);
  pack(index, count, width, lows);
  U steps[kChunk];
  const unsigned shift = std::min<unsigned>(width, 8 * sizeof(T) - 1);  // gives zero as well, and is defined
  for (size_t start = 0; start < count; start += kChunk) {
    const size_t n = std::min(kChunk, count - start);
    const T* at = index + start;
    steps[0] = static_cast<U>((at[0] >> shift) - (start ? at[-1] >> shift : 0));
    for (size_t i = 1; i < n; ++i) steps[i] = static_cast<U>((at[i] >> shift) - (at[i - 1] >> shift));
    pack_unary(steps, n, 0, highs);
  }
  return highs.bytes();
}

template <class T>
auto elias_fano_encode(In<T> indices, int64_t numel) {
  const T* index = indices.data();
  const size_t count = indices.size();
  const unsigned width = width_for(to_numel(numel), count);
  const bool good = without_gil([&] {
    return fastest([=](auto) SPARSEWIRE_FLATTEN { return ascend(index, count); });
  });
  require(good, "indices do not ascend");
  const size_t low_bytes = bytes_of(count * uint64_t{width});
  const size_t high_bytes = count ? bytes_of((static_cast<uint64_t>(index[count - 1]) >> width) + count) : 0;
  Buffer<uint8_t> low(low_bytes + BitWriter::kSlack), high(high_bytes + BitWriter::kSlack);
  without_gil([&] {
    fastest([=, l = low.data(), h = high.data()](auto) SPARSEWIRE_FLATTEN { encode(index, count, width, l, h); });
  });
  auto first = low.release(low_bytes);
  return std::make_pair(std::move(first), high.release(high_bytes));
}

struct Streams {
  const uint8_t *low, *high;
  size_t low_size, high_size, count;
  unsigned width;
};

// Whether the indices ascend below numel.
template <bool avx2, class T>
SPARSEWIRE_INLINE bool decode(const Streams s, uint64_t numel, T* out) {
  using U = std::make_unsigned_t<T>;  // of index + position, which may wrap, only the difference is used
  U ends[kChunk + Ones::kSlack];
  Ones ones(s.high, s.high_size);
  bool bad = false;
  for (size_t start = 0; start < s.count; start += kChunk) {
    const size_t n = std::min(kChunk, s.count - start);
    T* to = out + start;
    ones.read(ends, n);
    unpack<avx2>(s.low, s.low_size, uint64_t{s.width} * start, s.width, n, to);
    for (size_t i = 0; i < n; ++i) to[i] |= static_cast<T>((ends[i] - static_cast<U>(start + i)) << s.width);
    if (start) bad |= to[0] <= to[-1];
    for (size_t i = 1; i < n; ++i) bad |= to[i] <= to[i - 1];
  }
  return !bad && (s.count == 0 || static_cast<uint64_t>(out[s.count - 1]) < numel);
}

void check(const Streams& s, uint64_t numel) {
  const uint64_t ones = fastest([=](auto) SPARSEWIRE_FLATTEN { return count_ones(s.high, s.high_size); });
  require(ones == s.count && (s.high_size == 0 || s.high[s.high_size - 1] != 0),
          "the Elias-Fano high bits do not fit");
  require(s.low_size == bytes_of(s.count * uint64_t{s.width}), "the Elias-Fano low bits do not fit");
  if (s.count == 0) return;
  // Bounding the last high part bounds them all, so that no shift overflows.
  const uint64_t last = 8 * uint64_t{s.high_size - 1} + bit_length(s.high[s.high_size - 1]) - 1;
  require(numel != 0 && last - (s.count - 1) <= (numel - 1) >> s.width, "an Elias-Fano index leaves the tensor");
}

template <class T>
nb::object decode_as(const Streams s, uint64_t numel) {
  Buffer<T> out(s.count);
  const bool good = without_gil([&] {
    return fastest([=, to = out.data()](auto avx2) SPARSEWIRE_FLATTEN {
      return decode<decltype(avx2)::value>(s, numel, to);
    });
  });
  require(good, "Elias-Fano indices do not ascend below the number of elements");
  return nb::cast(out.release());
}

nb::object elias_fano_decode(In<uint8_t> low, In<uint8_t> high, int64_t numel_, int64_t count_) {
  const uint64_t numel = to_numel(numel_);
  const size_t count = to_count(count_);
  const Streams s{low.data(), high.data(), low.size(), high.size(), count, width_for(numel, count)};
  without_gil([&] { check(s, numel); });
  return wide_index(numel) ? decode_as<int64_t>(s, numel) : decode_as<int32_t>(s, numel);
}

const Binder binder([](nb::module_& m) {
  m.def("elias_fano_width", &elias_fano_width, nb::arg("numel"), nb::arg("count"));
  m.def("elias_fano_encode", &elias_fano_encode<int32_t>, nb::arg("indices").noconvert(), nb::arg("numel"));
  m.def("elias_fano_encode", &elias_fano_encode<int64_t>, nb::arg("indices").noconvert(), nb::arg("numel"));
  m.def("elias_fano_decode", &elias_fano_decode, nb::arg("low").noconvert(), nb::arg("high").noconvert(),
        nb::arg("numel"), nb::arg("count"));
});

}  // namespace
}  // namespace sparsewire
