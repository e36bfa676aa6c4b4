// The dense pass of selection: 64 entries at a time what exceeds a floor is marked in a word, and then listed.
//
// Each instruction set has its own marking; listing is shared. Words hold few hits at random places: a branch per vector
// would be mispredicted far more often than one per word.
#pragma once

#include <type_traits>

#include "common.hpp"

namespace sparsewire {

// Magnitudes are compared as these: the sign bit is never set, so that a signed compare is right, and -1 is below all.
template <class T>
using Bits = std::conditional_t<sizeof(T) == 4, int32_t, int64_t>;
template <class T>
constexpr Bits<T> kMaxBits = static_cast<Bits<T>>(~std::make_unsigned_t<Bits<T>>{0} >> 1);

template <class T>
SPARSEWIRE_INLINE Bits<T> magnitude(T value) {
  Bits<T> bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits & kMaxBits<T>;
}

template <class T>
constexpr Bits<T> kInfinity = sizeof(T) == 4 ? 0x7F800000 : static_cast<Bits<T>>(0x7FF0000000000000);

// What a pass lists: what exceeds the floor by magnitude; with a sign, only what has that sign. The key of anything of
// the other sign is negative, so the floor is at least 0 then.
enum class Sign { any, plus, minus };

template <class T>
struct Cut {
  Bits<T> floor, mask, flip;

  explicit Cut(Bits<T> floor, Sign sign = Sign::any)
      : floor(floor), mask(sign == Sign::any ? kMaxBits<T> : -1), flip(sign == Sign::minus ? -kMaxBits<T> - 1 : 0) {}

  SPARSEWIRE_INLINE bool lists(T value) const {
    Bits<T> bits;
    std::memcpy(&bits, &value, sizeof bits);
    return ((bits & mask) ^ flip) > floor;
  }
};

constexpr size_t kWord = 64;
template <class T>
constexpr size_t kBlock = 4096 / sizeof(T);  // entries of a call: a page
constexpr size_t kAlways = 2;                // entries listed without a branch
constexpr size_t kSlack = kAlways;           // a listing may write this many entries behind its end

// A compensated gradient, nowhere in memory: decay · residual + gain · x. Every product and sum is rounded by itself.
template <class T>
struct Terms {
  const T* residual = nullptr;
  T decay = 1, gain = 1;

  Terms from(size_t at) const { return {residual ? residual + at : nullptr, decay, gain}; }
};

// What a pass reads: x alone, residual + x, or both with their factors.
enum class Mode { list = 0, sum = 1, scaled = 2 };
constexpr size_t kModes = 3;

template <class T>
Mode mode_of(const Terms<T>& terms) {
  if (!terms.residual) return Mode::list;
  return terms.decay == 1 && terms.gain == 1 ? Mode::sum : Mode::scaled;
}

// The compensated gradient at an entry, or at as many as V has lanes.
template <Mode kMode, class T, class V>
SPARSEWIRE_INLINE void load_sum(const Terms<T>& terms, const T* x, size_t at, V& out) {
  V r = {}, g;
  std::memcpy(&g, x + at, sizeof g);
  if constexpr (kMode != Mode::list) std::memcpy(&r, terms.residual + at, sizeof r);
  if constexpr (kMode == Mode::list) out = g;
  if constexpr (kMode == Mode::sum) out = r + g;
  if constexpr (kMode == Mode::scaled) out = terms.decay * r + terms.gain * g;
}

// out[i] = the compensated gradient at i; compilers vectorise the loop.
template <class T>
SPARSEWIRE_INLINE void combine_all(const Terms<T>& terms, const T* x, size_t n, T* out) {
  if (!terms.residual) return void(std::memcpy(out, x, n * sizeof(T)));
  for (size_t i = 0; i < n; ++i) out[i] = terms.decay * terms.residual[i] + terms.gain * x[i];
}

// Fetches a word of an array two pages ahead, where a pass reads one array: processors fetch too little of it by
// themselves. Of two arrays they fetch as much as memory gives, and asking for more costs time. Measured.
template <Mode kMode, class T>
SPARSEWIRE_INLINE void prefetch_word(const T* x) {
  if constexpr (kMode == Mode::list)
    for (size_t i = 0; i < kWord; i += 64 / sizeof(T)) __builtin_prefetch(x + 8192 / sizeof(T) + i);
}

// What a velocity adds to an update: the rules, and for each element what was sent and which bits of its velocity stay.
template <class T>
struct Motion {
  T momentum, lead;
  const T* sent;
  const Bits<T>* moving;
};

template <class T>
SPARSEWIRE_INLINE T masked(T value, Bits<T> mask) {
  Bits<T> bits;
  std::memcpy(&bits, &value, sizeof bits);
  bits &= mask;
  std::memcpy(&value, &bits, sizeof bits);
  return value;
}

// The compensated gradient into the residual; with a velocity without what was sent, and lead · velocity besides.
template <class T>
SPARSEWIRE_INLINE void advance_all(T* __restrict r, T* __restrict v, T decay, T gain, const Motion<T>& motion,
                                   const T* __restrict x, size_t n) {
  if (!v) {
    for (size_t i = 0; i < n; ++i) r[i] = decay * r[i] + gain * x[i];
    return;
  }
  const T momentum = motion.momentum, lead = motion.lead;
  const T* __restrict sent = motion.sent;
  const Bits<T>* __restrict moving = motion.moving;
  for (size_t i = 0; i < n; ++i) {
    const T moved = masked(momentum * v[i] + x[i], moving[i]);
    r[i] = decay * r[i] + gain * x[i] - sent[i] + lead * moved;
    v[i] = moved;
  }
}

// Σ r² in float64, after r ← r + x where there is an x: in 16 lanes by index, which are added up in their order. So the
// sum is the same in every instruction set.
template <class T>
SPARSEWIRE_INLINE double add_squares(T* __restrict r, const T* __restrict x, size_t n) {
  constexpr size_t kEight = 8, kLanes = 2 * kEight;
  typedef T V __attribute__((vector_size(kEight * sizeof(T))));
  typedef double D __attribute__((vector_size(kEight * sizeof(double))));
  D lanes[2] = {};
  size_t at = 0;
  for (; at + kLanes <= n; at += kLanes)
    for (size_t half = 0; half < 2; ++half) {
      T* place = r + at + half * kEight;
      V sum;
      std::memcpy(&sum, place, sizeof sum);
      if (x) {
        V more;
        std::memcpy(&more, x + at + half * kEight, sizeof more);
        sum += more;
        std::memcpy(place, &sum, sizeof sum);
      }
      const D wide = __builtin_convertvector(sum, D);
      lanes[half] += wide * wide;
    }
  for (size_t i = 0; at + i < n; ++i) {
    if (x) r[at + i] += x[at + i];
    const double wide = r[at + i];
    lanes[i / kEight][i % kEight] += wide * wide;
  }
  double total = 0;
  for (size_t i = 0; i < kLanes; ++i) total += lanes[i / kEight][i % kEight];
  return total;
}

// Lists the entries of x[0 … n) (n ≤ kBlock<T>), or of the compensated gradient, that the cut lists, counting from
// `first`; returns how many.
template <class T>
using Scan = size_t (*)(const Terms<T>& terms, const T* x, size_t n, int32_t first, const Cut<T>& cut,
                        int32_t* indices, T* values);

// The dense passes in one instruction set.
template <class T>
struct Passes {
  Scan<T> scan[kModes];  // by Mode
  void (*combine)(const Terms<T>& terms, const T* x, size_t n, T* out);
  void (*advance)(T* residual, T* velocity, T decay, T gain, const Motion<T>& motion, const T* x, size_t n);
  double (*squares)(T* residual, const T* x, size_t n);  // with x = nullptr the residual is only read
};

struct Scans {
  Passes<float> of_float;
  Passes<double> of_double;
  uint64_t (*read)(const char* data, size_t bytes);
};
extern const Scans plain_scans;
#if defined(__x86_64__)
extern const Scans avx2_scans, avx512_scans;

// Whole vectors at a time, for lists that no other thread can change: they write up to kVector entries behind the end.
// The magnitudes in low … high, for which `out` may be x itself; the entries with magnitude > floor, moved by `base`.
size_t keep_avx2(const float* x, size_t n, int32_t low, int32_t high, float* out);
size_t filter_avx2(const int32_t* indices, const float* values, size_t n, int32_t base, int32_t floor,
                   int32_t* out_indices, float* out_values);
#endif
constexpr size_t kVector = 8;

// Takes the lowest bit off the word; without one, writes what will be overwritten.
template <Mode kMode, class T>
SPARSEWIRE_INLINE void list_lowest(uint64_t& word, const Terms<T>& terms, const T* x, int32_t first, int32_t* index,
                                   T* value) {
  const int bit = __builtin_ctzll(word | uint64_t{1} << 63);
  *index = first + bit;
  load_sum<kMode>(terms, x, bit, *value);
  word &= word - 1;
}

// Lists the marked ones of 64 entries; some are written whether or not they are hits.
template <Mode kMode, class T>
SPARSEWIRE_INLINE size_t list_word(uint64_t word, const Terms<T>& terms, const T* x, int32_t first, int32_t* indices,
                                   T* values) {
  const size_t hits = __builtin_popcountll(word);
#pragma GCC unroll 2
  for (size_t i = 0; i < kAlways; ++i) list_lowest<kMode>(word, terms, x, first, indices + i, values + i);
  for (size_t i = kAlways; i < hits; ++i) list_lowest<kMode>(word, terms, x, first, indices + i, values + i);
  return hits;
}

// The entries after the last whole word.
template <class T, Mode kMode>
SPARSEWIRE_INLINE size_t list_tail(const Terms<T>& terms, const T* x, size_t begin, size_t n, int32_t first,
                                   const Cut<T>& cut, int32_t* indices, T* values) {
  size_t size = 0;
  for (size_t i = begin; i < n; ++i) {
    T value;
    load_sum<kMode>(terms, x, i, value);
    indices[size] = first + static_cast<int32_t>(i);
    values[size] = value;
    size += cut.lists(value);
  }
  return size;
}

// One read of the data, for benchmarks to compare with. V is the widest vector of the instruction set.
template <class V>
SPARSEWIRE_INLINE uint64_t read_all(const char* data, size_t bytes) {
  V lanes[8] = {};
  size_t at = 0;
  for (; at + sizeof lanes <= bytes; at += sizeof lanes)
    for (size_t i = 0; i < 8; ++i) {
      V next;
      std::memcpy(&next, data + at + i * sizeof(V), sizeof(V));
      lanes[i] ^= next;
    }
  for (size_t i = 1; i < 8; ++i) lanes[0] ^= lanes[i];
  uint64_t result = 0;
  for (size_t i = 0; i < sizeof(V) / 8; ++i) result ^= lanes[0][i];
  for (; at < bytes; ++at) result ^= static_cast<unsigned char>(data[at]);
  return result;
}

}  // namespace sparsewire
