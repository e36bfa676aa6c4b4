// pack_uneven, unpack_uneven: values of a width each, one after the other, from the least significant bit.
#include "common.hpp"

namespace sparsewire {
namespace {

uint64_t total_bits(const uint8_t* widths, size_t n, unsigned most) {
  uint64_t total = 0;
  unsigned widest = 0;
  for (size_t i = 0; i < n; ++i) {
    total += widths[i];
    widest = widths[i] > widest ? widths[i] : widest;
  }
  require(widest <= most, "the widths do not fit the values");
  return total;
}

inline uint64_t low_mask(unsigned width) { return width >= 64 ? ~uint64_t(0) : (uint64_t(1) << width) - 1; }

// `out` has 8 bytes to spare behind the stream.
template <class U>
void pack(const U* values, const uint8_t* widths, size_t n, uint8_t* out) {
  uint64_t held = 0;
  unsigned filled = 0;
  for (size_t i = 0; i < n; ++i) {
    uint64_t value = values[i] & low_mask(widths[i]);
    held |= value << filled;
    unsigned after = filled + widths[i];
    if (after >= 64) {
      std::memcpy(out, &held, 8);
      out += 8;
      after -= 64;
      held = after ? value >> (widths[i] - after) : 0;
    }
    filled = after;
  }
  std::memcpy(out, &held, 8);
}

template <class U>
Out<uint8_t> pack_uneven(In<U> values, In<uint8_t> widths) {
  require(values.size() == widths.size(), "the widths do not fit the values");
  uint64_t bytes = (total_bits(widths.data(), widths.size(), 8 * sizeof(U)) + 7) / 8;
  Buffer<uint8_t> out(bytes + 16);
  {
    nb::gil_scoped_release release;
    pack(values.data(), widths.data(), values.size(), out.data());
  }
  return out.release(bytes);
}

// Bits position … position + width − 1 of the stream, which ends after `bytes`.
inline uint64_t read_bits(const uint8_t* data, size_t bytes, uint64_t position, unsigned width) {
  size_t first = position / 8;
  unsigned shift = position % 8;
  uint64_t word = 0, above = 0;
  size_t left = bytes - first;
  std::memcpy(&word, data + first, left < 8 ? left : 8);
  if (shift + width > 64) above = data[first + 8];
  word = shift ? word >> shift | above << (64 - shift) : word;
  return word & low_mask(width);
}

Out<uint64_t> unpack_uneven(In<uint8_t> data, In<uint8_t> widths) {
  uint64_t total = total_bits(widths.data(), widths.size(), 64);
  require(data.size() == (total + 7) / 8, "the bits are not as many bytes");
  Buffer<uint64_t> out(widths.size());
  {
    nb::gil_scoped_release release;
    uint64_t position = 0;
    for (size_t i = 0; i < widths.size(); position += widths.data()[i++])
      out.data()[i] = widths.data()[i] ? read_bits(data.data(), data.size(), position, widths.data()[i]) : 0;
  }
  return out.release();
}

const Binder binder([](nb::module_& m) {
  m.def("pack_uneven", &pack_uneven<uint32_t>, nb::arg("values").noconvert(), nb::arg("widths"));
  m.def("pack_uneven", &pack_uneven<uint64_t>, nb::arg("values").noconvert(), nb::arg("widths"));
  m.def("unpack_uneven", &unpack_uneven, nb::arg("data"), nb::arg("widths"));
});

}  // namespace
}  // namespace sparsewire
