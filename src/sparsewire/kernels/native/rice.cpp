// Rice codes with a parameter per block; parameters, low bits and unary bits in streams of their own.
#include "bitio.hpp"

namespace sparsewire {
namespace {

// --- encoding ----------------------------------------------------------------------------------------------------

// Σ ⌈(v >> b) / 2⌉; the caller knows that it fits A.
template <class A, class T>
SPARSEWIRE_INLINE A half_sum(const T* values, size_t count, unsigned b) {
  A sum = 0;
  for (size_t i = 0; i < count; ++i) sum += (static_cast<A>(values[i] >> b) + 1) >> 1;
  return sum;
}

// With n entries that sum to S, b is too small where S >> b exceeds 3n and large enough where it is below n, which
// leaves at most two to try.
template <class T>
SPARSEWIRE_INLINE unsigned parameter_by_sum(const T* values, size_t count, uint64_t sum) {
  const int start = static_cast<int>(bit_length(sum)) - static_cast<int>(bit_length(3 * count));
  unsigned b = static_cast<unsigned>(std::max(0, start));
  while ((sum >> b) > 3 * count) ++b;
  const bool narrow = sizeof(T) == 4 && count < size_t{1} << 28;
  while ((sum >> b) >= count &&
         (narrow ? half_sum<uint32_t>(values, count, b) : half_sum<uint64_t>(values, count, b)) > count)
    ++b;
  return b;
}

// For values whose sum may overflow.
template <class T>
unsigned parameter_by_walking(const T* values, size_t count) {
  for (unsigned b = 0;; ++b) {
    uint64_t sum = 0;
    for (size_t i = 0; i < count && sum <= count; ++i) sum += (values[i] >> b >> 1) + (values[i] >> b & 1);
    if (sum <= count) return b;
  }
}

template <class T>
SPARSEWIRE_INLINE unsigned parameter(const T* values, size_t count) {
  uint64_t sum = 0, any = 0;
  for (size_t i = 0; i < count; ++i) {
    sum += values[i];
    if (sizeof(T) == 8) any |= values[i];
  }
  const bool overflows = sizeof(T) == 8 ? bit_length(any) + bit_length(count) > 63 : count >> 31 != 0;
  return overflows ? parameter_by_walking(values, count) : parameter_by_sum(values, count, sum);
}

// Returns the number of low bits.
template <class T>
SPARSEWIRE_INLINE uint64_t choose(const T* values, size_t count, size_t block, uint8_t* parameters) {
  uint64_t low_bits = 0;
  for (size_t i = 0; i < count; i += block) {
    const size_t n = std::min(block, count - i);
    const unsigned b = parameter(values + i, n);
    *parameters++ = static_cast<uint8_t>(b);
    low_bits += b * static_cast<uint64_t>(n);
  }
  return low_bits;
}

template <class T>
SPARSEWIRE_INLINE size_t emit(const T* values, size_t count, size_t block, const uint8_t* parameters, uint8_t* low,
                              uint8_t* unary) {
  BitWriter lows(low), unaries(unary);
  for (size_t i = 0; i < count; i += block) {
    const size_t n = std::min(block, count - i);
    const unsigned b = *parameters++;
    pack(values + i, n, b, lows);
    pack_unary(values + i, n, b, unaries);
  }
  return unaries.bytes();
}

// A block no larger than the array, so that index arithmetic does not overflow.
size_t to_block(int64_t block, size_t count) {
  require(block >= 1, "a block has at least one entry");
  return std::min(static_cast<size_t>(block), std::max<size_t>(count, 1));
}

template <class T>
auto rice_encode(In<T> array, int64_t block_) {
  const T* values = array.data();
  const size_t count = array.size(), block = to_block(block_, count);
  Buffer<uint8_t> parameters(count / block + (count % block != 0));
  const uint64_t low_bits = without_gil([&] {
    return fastest([=, to = parameters.data()](auto) SPARSEWIRE_FLATTEN { return choose(values, count, block, to); });
  });
  Buffer<uint8_t> low(bytes_of(low_bits) + BitWriter::kSlack);
  // A block's quotients sum to at most 2n, by the choice of its parameter.
  Buffer<uint8_t> unary(count / 8 * 3 + 3 + BitWriter::kSlack);
  const size_t unary_bytes = without_gil([&] {
    return fastest([=, b = parameters.data(), l = low.data(), u = unary.data()](auto)
                       SPARSEWIRE_FLATTEN { return emit(values, count, block, b, l, u); });
  });
  auto first = parameters.release(), second = low.release(bytes_of(low_bits));
  return std::make_tuple(std::move(first), std::move(second), unary.release(unary_bytes));
}

// --- decoding ----------------------------------------------------------------------------------------------------

struct Streams {
  const uint8_t *parameters, *low, *unary;
  size_t low_size, unary_size, count, block;
};

// A run of entries with one parameter: `ends` are the positions of the unary ones, the one before them included.
// Returns whether the quotients fit.
template <bool avx2, class T, class P>
SPARSEWIRE_INLINE bool decode_piece(const Streams& s, const P* ends, uint64_t bit, unsigned b, size_t n, T* out) {
  unpack<avx2>(s.low, s.low_size, bit, b, n, out);
  P any = 0;
  for (size_t i = 0; i < n; ++i) {
    const P quotient = ends[i + 1] - ends[i] - 1;
    any |= quotient;
    out[i] |= static_cast<T>(static_cast<T>(quotient) << b);
  }
  return static_cast<uint64_t>(any) <= low_mask(8 * sizeof(T) - b);
}

// P holds a position in the unary stream.
template <bool avx2, class P, class T>
SPARSEWIRE_INLINE bool decode(const Streams s, T* out) {
  constexpr size_t kChunk = 2048;
  P ends[1 + kChunk + Ones::kSlack];
  Ones ones(s.unary, s.unary_size);
  ends[0] = static_cast<P>(-1);
  uint64_t bit = 0;
  size_t left = s.block;  // in the current block
  const uint8_t* b = s.parameters;
  bool fits = true;
  for (size_t start = 0; start < s.count; start += kChunk) {
    const size_t n = std::min(kChunk, s.count - start);
    ones.read(ends + 1, n);
    for (size_t i = 0; i < n;) {
      const size_t piece = std::min(left, n - i);
      fits &= decode_piece<avx2>(s, ends + i, bit, *b, piece, out + start + i);
      bit += uint64_t{*b} * piece;
      i += piece;
      left -= piece;
      if (left == 0) ++b, left = s.block;
    }
    ends[0] = ends[n];
  }
  return fits;
}

void check(const Streams& s, size_t parameters, unsigned limit) {
  require(parameters == s.count / s.block + (s.count % s.block != 0), "the Rice parameters do not fit");
  const uint64_t ones = fastest([=](auto) SPARSEWIRE_FLATTEN { return count_ones(s.unary, s.unary_size); });
  require(ones == s.count && (s.unary_size == 0 || s.unary[s.unary_size - 1] != 0),
          "the Rice unary stream does not fit");
  uint64_t low_bits = 0;
  for (size_t i = 0; i < parameters; ++i) {
    require(s.parameters[i] < limit, "a Rice parameter is too large");
    low_bits += uint64_t{s.parameters[i]} * std::min(s.block, s.count - i * s.block);
  }
  require(s.low_size == bytes_of(low_bits), "the Rice low bits do not fit");
}

template <class T>
nb::object decode_as(const Streams s, size_t parameters) {
  without_gil([&] { check(s, parameters, 8 * sizeof(T)); });
  Buffer<T> out(s.count);
  const bool fits = without_gil([&] {
    return fastest([s, to = out.data()](auto avx2) SPARSEWIRE_FLATTEN {
      constexpr bool vectors = decltype(avx2)::value;
      if (s.unary_size < size_t{1} << 29) return decode<vectors, uint32_t>(s, to);
      return decode<vectors, uint64_t>(s, to);
    });
  });
  require(fits, "a Rice code is too large");
  return nb::cast(out.release());
}

nb::object rice_decode(In<uint8_t> parameters, In<uint8_t> low, In<uint8_t> unary, int64_t count_, int64_t block,
                       bool wide) {
  const size_t count = to_count(count_);
  const Streams s{parameters.data(), low.data(),  unary.data(),          low.size(),
                  unary.size(),      count,       to_block(block, count)};
  return wide ? decode_as<uint64_t>(s, parameters.size()) : decode_as<uint32_t>(s, parameters.size());
}

const Binder binder([](nb::module_& m) {
  m.def("rice_encode", &rice_encode<uint32_t>, nb::arg("values").noconvert(), nb::arg("block"));
  m.def("rice_encode", &rice_encode<uint64_t>, nb::arg("values").noconvert(), nb::arg("block"));
  m.def("rice_decode", &rice_decode, nb::arg("parameters").noconvert(), nb::arg("low").noconvert(),
        nb::arg("unary").noconvert(), nb::arg("count"), nb::arg("block"), nb::arg("wide"));
});

}  // namespace
}  // namespace sparsewire
