// The dense pass of selection without intrinsics: loops that compilers vectorise for whatever the target has.
#include "select_scan.hpp"

namespace sparsewire {
namespace {

typedef uint64_t Vector __attribute__((vector_size(16)));

// Bytes of 0 or 1 to bits: the product moves the lowest bit of byte i to bit 56 + i.
uint64_t pack_flags(const uint8_t* flags) {
  uint64_t word = 0;
  for (size_t i = 0; i < kWord / 8; ++i) {
    uint64_t eight;
    std::memcpy(&eight, flags + 8 * i, 8);
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    eight = __builtin_bswap64(eight);
#endif
    word |= (eight * 0x0102040810204080) >> 56 << (8 * i);
  }
  return word;
}

template <class T, Mode kMode>
uint64_t mark(const Terms<T>& terms, const T* x, size_t at, const Cut<T>& cut) {
  uint8_t flags[kWord];
  for (size_t i = 0; i < kWord; ++i) {
    T value;
    load_sum<kMode>(terms, x, at + i, value);
    flags[i] = cut.lists(value);
  }
  return pack_flags(flags);
}

template <class T, Mode kMode>
size_t scan(const Terms<T>& terms, const T* x, size_t n, int32_t first, const Cut<T>& given, int32_t* indices,
            T* values) {
  const Cut<T> cut = given;  // a copy: no store can change it
  size_t size = 0, at = 0;
  for (; at + kWord <= n; at += kWord) {
    prefetch_word<kMode>(x + at);
    size += list_word<kMode>(mark<T, kMode>(terms, x, at, cut), terms.from(at), x + at, first + static_cast<int32_t>(at),
                             indices + size, values + size);
  }
  return size + list_tail<T, kMode>(terms, x, at, n, first, cut, indices + size, values + size);
}

template <class T>
void combine(const Terms<T>& terms, const T* x, size_t n, T* out) {
  combine_all(terms, x, n, out);
}

template <class T>
void advance(T* residual, T* velocity, T decay, T gain, const Motion<T>& motion, const T* x, size_t n) {
  advance_all(residual, velocity, decay, gain, motion, x, n);
}

template <class T>
double squares(T* residual, const T* x, size_t n) {
  return add_squares(residual, x, n);
}

uint64_t read(const char* data, size_t bytes) { return read_all<Vector>(data, bytes); }

}  // namespace

const Scans plain_scans = {
    {{scan<float, Mode::list>, scan<float, Mode::sum>, scan<float, Mode::scaled>},
     combine<float>,
     advance<float>,
     squares<float>},
    {{scan<double, Mode::list>, scan<double, Mode::sum>, scan<double, Mode::scaled>},
     combine<double>,
     advance<double>,
     squares<double>},
    read,
};

}  // namespace sparsewire
