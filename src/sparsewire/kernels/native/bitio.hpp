// Bits in byte strings, least significant first: writing, unpacking, walking the set ones. Assumes little-endian.
#pragma once

#include <algorithm>
#include <array>
#include <type_traits>

#include "common.hpp"

#if defined(__x86_64__)
#include <immintrin.h>
#define SPARSEWIRE_AVX2 __attribute__((target("avx2,bmi,bmi2,lzcnt,popcnt")))
#endif

namespace sparsewire {

// `fastest(f)` calls f(std::true_type) compiled for AVX2 where the machine has it, else f(std::false_type). For that,
// f and all it calls must be forced inline: then plain code turns into tzcnt, shlx and vectors.
#if defined(__x86_64__)
template <class F>
SPARSEWIRE_AVX2 auto with_avx2(const F& f) {
  return f(std::true_type());
}
#endif

template <class F>
auto fastest(const F& f) {
#if defined(__x86_64__)
  if (isa() != Isa::plain) return with_avx2(f);
#endif
  return f(std::false_type());
}

template <class F>
auto without_gil(const F& f) {
  nb::gil_scoped_release release;
  return f();
}

// A count that an array may have: neither negative nor so large that its bytes overflow.
inline size_t to_count(int64_t count) {
  require(count >= 0 && count <= PTRDIFF_MAX / 16, "a count is out of range");
  return static_cast<size_t>(count);
}

inline uint64_t to_numel(int64_t numel) {
  require(numel >= 0, "a number of elements is negative");
  return static_cast<uint64_t>(numel);
}

inline bool wide_index(uint64_t numel) { return numel > uint64_t{1} << 31; }

SPARSEWIRE_INLINE uint64_t load64(const uint8_t* p) {
  uint64_t word;
  std::memcpy(&word, p, 8);
  return word;
}

SPARSEWIRE_INLINE void store64(uint8_t* p, uint64_t word) { std::memcpy(p, &word, 8); }

// The word at p, of which only `left` bytes exist.
SPARSEWIRE_INLINE uint64_t load_some(const uint8_t* p, size_t left) {
  if (left >= 8) return load64(p);
  uint64_t word = 0;
  for (size_t i = 0; i < left; ++i) word |= uint64_t{p[i]} << (8 * i);
  return word;
}

SPARSEWIRE_INLINE uint64_t low_mask(unsigned width) { return width >= 64 ? ~uint64_t{0} : (uint64_t{1} << width) - 1; }
SPARSEWIRE_INLINE unsigned trailing_zeros(uint64_t word) { return __builtin_ctzll(word | uint64_t{1} << 63); }
SPARSEWIRE_INLINE unsigned bit_length(uint64_t x) { return x ? 64 - __builtin_clzll(x) : 0; }

inline uint64_t bytes_of(uint64_t bits) { return bits / 8 + (bits % 8 != 0); }

// --- writing -----------------------------------------------------------------------------------------------------

// Every append stores a whole word, so the buffer needs `kSlack` bytes more than the bits fill.
class BitWriter {
 public:
  static constexpr size_t kSlack = 8;
  static constexpr unsigned kMost = 56;
  explicit BitWriter(uint8_t* data) : begin_(data), at_(data) {}

  // At most `kMost` bits, none set beyond `count`.
  SPARSEWIRE_INLINE void append(uint64_t bits, unsigned count) {
    word_ |= bits << fill_;
    store64(at_, word_);
    fill_ += count;
    at_ += fill_ >> 3;
    word_ >>= fill_ & ~7u;
    fill_ &= 7;
  }

  size_t bytes() const { return static_cast<size_t>(at_ - begin_) + (fill_ != 0); }

 private:
  uint8_t *begin_, *at_;
  uint64_t word_ = 0;
  unsigned fill_ = 0;  // below 8 between appends
};

template <int n, class T>
SPARSEWIRE_INLINE uint64_t join(const T* values, unsigned width, uint64_t mask) {
  if constexpr (n == 1)
    return static_cast<uint64_t>(*values) & mask;
  else
    return join<n / 2>(values, width, mask) | join<n / 2>(values + n / 2, width, mask) << (n / 2 * width);
}

template <int group, class T>
SPARSEWIRE_INLINE void pack_groups(const T* values, size_t count, unsigned width, BitWriter& out) {
  const uint64_t mask = low_mask(width);
  size_t i = 0;
  for (; i + group <= count; i += group) out.append(join<group>(values + i, width, mask), group * width);
  for (; i < count; ++i) out.append(join<1>(values + i, width, mask), width);
}

// The `width` low bits of each value.
template <class T>
SPARSEWIRE_INLINE void pack(const T* values, size_t count, unsigned width, BitWriter& out) {
  if (width == 0) return;
  if (width <= 7) return pack_groups<8>(values, count, width, out);
  if (width <= 14) return pack_groups<4>(values, count, width, out);
  if (width <= 28) return pack_groups<2>(values, count, width, out);
  if (width <= BitWriter::kMost) return pack_groups<1>(values, count, width, out);
  for (size_t i = 0; i < count; ++i) {
    const uint64_t value = static_cast<uint64_t>(values[i]) & low_mask(width);
    out.append(value & low_mask(32), 32);
    out.append(value >> 32, width - 32);
  }
}

SPARSEWIRE_INLINE void append_unary(uint64_t zeros, BitWriter& out) {
  for (; zeros >= BitWriter::kMost; zeros -= BitWriter::kMost) out.append(0, BitWriter::kMost);
  out.append(uint64_t{1} << zeros, static_cast<unsigned>(zeros) + 1);
}

// For each value, value >> shift zeros and a one. The values' sum must fit 64 bits.
template <class T>
SPARSEWIRE_INLINE void pack_unary(const T* values, size_t count, unsigned shift, BitWriter& out) {
  size_t i = 0;
  for (; i + 4 <= count; i += 4) {
    const uint64_t a = values[i] >> shift, b = a + (values[i + 1] >> shift) + 1;
    const uint64_t c = b + (values[i + 2] >> shift) + 1, d = c + (values[i + 3] >> shift) + 1;
    if (d < BitWriter::kMost)
      out.append(uint64_t{1} << a | uint64_t{1} << b | uint64_t{1} << c | uint64_t{1} << d, unsigned(d) + 1);
    else
      for (size_t j = i; j < i + 4; ++j) append_unary(values[j] >> shift, out);
  }
  for (; i < count; ++i) append_unary(values[i] >> shift, out);
}

// --- reading -----------------------------------------------------------------------------------------------------

#if defined(__x86_64__)
// Eight values of up to 25 bits: a byte shuffle brings each into a 32-bit lane of its own, a shift aligns it. The upper
// four start at byte width / 2.
struct UnpackPlan {
  alignas(32) uint8_t bytes[32];
  alignas(32) uint32_t shifts[8];
};

constexpr unsigned kPlannedWidth = 25;

constexpr std::array<UnpackPlan, kPlannedWidth + 1> unpack_plans() {
  std::array<UnpackPlan, kPlannedWidth + 1> plans{};
  for (unsigned width = 0; width <= kPlannedWidth; ++width)
    for (unsigned lane = 0; lane < 8; ++lane) {
      const unsigned bit = lane % 4 * width + (lane < 4 ? 0 : 4 * width % 8);
      plans[width].shifts[lane] = bit % 8;
      for (unsigned i = 0; i < 4; ++i) plans[width].bytes[4 * lane + i] = static_cast<uint8_t>(bit / 8 + i);
    }
  return plans;
}

inline constexpr auto kUnpackPlans = unpack_plans();

// Unpacks eights while the loads stay inside `size`; returns how many values that were.
template <class T>
SPARSEWIRE_AVX2 inline size_t unpack_eights(const uint8_t* data, size_t size, unsigned width, size_t count, T* out) {
  const UnpackPlan& plan = kUnpackPlans[width];
  const __m256i bytes = _mm256_load_si256(reinterpret_cast<const __m256i*>(plan.bytes));
  const __m256i shifts = _mm256_load_si256(reinterpret_cast<const __m256i*>(plan.shifts));
  const __m256i mask = _mm256_set1_epi32(static_cast<int>(low_mask(width)));
  size_t i = 0;
  for (size_t at = 0; i + 8 <= count && at + width / 2 + 16 <= size; i += 8, at += width) {
    const __m128i lower = _mm_loadu_si128(reinterpret_cast<const __m128i*>(data + at));
    const __m128i upper = _mm_loadu_si128(reinterpret_cast<const __m128i*>(data + at + width / 2));
    const __m256i lanes = _mm256_shuffle_epi8(_mm256_set_m128i(upper, lower), bytes);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + i), _mm256_and_si256(_mm256_srlv_epi32(lanes, shifts), mask));
  }
  return i;
}
#endif

SPARSEWIRE_INLINE uint64_t peek(const uint8_t* data, size_t size, uint64_t bit, unsigned width) {
  const size_t byte = bit >> 3;
  const unsigned shift = bit & 7;
  uint64_t word = load_some(data + byte, size - byte) >> shift;
  if (shift + width > 64) word |= uint64_t{data[byte + 8]} << (64 - shift);
  return word & low_mask(width);
}

// `count` values of `width` bits from bit `bit` on; the caller has checked that data holds them.
template <bool avx2, class T>
SPARSEWIRE_INLINE void unpack(const uint8_t* data, size_t size, uint64_t bit, unsigned width, size_t count, T* out) {
  size_t i = 0;
  if (width == 0) return void(std::fill_n(out, count, T{0}));
#if defined(__x86_64__)
  if constexpr (avx2 && sizeof(T) == 4)
    if (width <= kPlannedWidth && bit % 8 == 0) {
      i = unpack_eights(data + bit / 8, size - bit / 8, width, count, out);
      bit += i * width;
    }
#endif
  if (width <= BitWriter::kMost && size >= 8 && bit / 8 <= size - 8) {
    const size_t near = i + ((size - 8) * 8 + 7 - bit) / width + 1;  // those whose word lies inside
    const uint64_t mask = low_mask(width);
    for (const size_t end = std::min(count, near); i < end; ++i, bit += width)
      out[i] = static_cast<T>(load64(data + (bit >> 3)) >> (bit & 7) & mask);
  }
  for (; i < count; ++i, bit += width) out[i] = static_cast<T>(peek(data, size, bit, width));
}

SPARSEWIRE_INLINE uint64_t count_ones(const uint8_t* data, size_t size) {
  uint64_t ones = 0;
  size_t i = 0;
  for (; i + 8 <= size; i += 8) ones += __builtin_popcountll(load64(data + i));
  return i < size ? ones + __builtin_popcountll(load_some(data + i, size - i)) : ones;
}

// Walks the positions of the set bits, ascending.
class Ones {
 public:
  static constexpr size_t kSlack = 8;
  Ones(const uint8_t* data, size_t size) : data_(data), size_(size) {}

  // The next `count` positions. The caller knows that there are as many, and `out` has room for `kSlack` more.
  template <class T>
  SPARSEWIRE_INLINE void read(T* out, size_t count) {
    drain(out, count);
    for (; count >= 64 && size_ - next_ >= 8; next_ += 8) {
      const uint64_t word = load64(data_ + next_);
      const unsigned ones = __builtin_popcountll(word);
      spread(word, ones, static_cast<T>(8 * next_), out);
      out += ones;
      count -= ones;
    }
    while (count && next_ < size_) {
      base_ = 8 * next_;
      word_ = load_some(data_ + next_, size_ - next_);
      next_ += std::min<size_t>(8, size_ - next_);
      drain(out, count);
    }
  }

 private:
  template <class T>
  SPARSEWIRE_INLINE void drain(T*& out, size_t& count) {
    for (; word_ && count; --count, word_ &= word_ - 1) *out++ = static_cast<T>(base_ + trailing_zeros(word_));
  }

  // Writes in steps, past the last one: fewer branches to mispredict.
  template <class T>
  SPARSEWIRE_INLINE static void spread(uint64_t word, unsigned ones, T base, T* out) {
    step<2>(word, base, out);
    if (ones <= 2) return;
    step<6>(word, base, out + 2);
    for (unsigned i = 8; i < ones; i += 8) step<8>(word, base, out + i);
  }

  template <int n, class T>
  SPARSEWIRE_INLINE static void step(uint64_t& word, T base, T* out) {
    for (int i = 0; i < n; ++i, word &= word - 1) out[i] = static_cast<T>(base + trailing_zeros(word));
  }

  const uint8_t* data_;
  size_t size_;
  size_t next_ = 0;    // the byte after the current word
  uint64_t base_ = 0;  // the position of the current word's first bit
  uint64_t word_ = 0;  // what is left of it
};

}  // namespace sparsewire
