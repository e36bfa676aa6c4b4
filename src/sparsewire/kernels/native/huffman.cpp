// Canonical Huffman codes of bytes, at most 12 bits long.
#include <algorithm>
#include <functional>
#include <queue>
#include <vector>

#include "bitio.hpp"

namespace sparsewire {
namespace {

constexpr unsigned kMaxLength = 12;
constexpr size_t kSpace = size_t{1} << kMaxLength;

struct Code {
  uint32_t bits = 0;
  uint32_t length = 0;
};

using Codes = std::array<Code, 256>;  // length 0: no code

struct LengthCounts {
  size_t of[kMaxLength + 1] = {};
  size_t used = 0;
};

LengthCounts count_lengths(In<uint8_t> lengths) {
  require(lengths.size() <= 256, "Huffman lengths are out of range");
  LengthCounts counts;
  size_t space = 0;
  for (size_t s = 0; s < lengths.size(); ++s) {
    const unsigned length = lengths.data()[s];
    require(length <= kMaxLength, "Huffman lengths are out of range");
    if (length == 0) continue;
    ++counts.of[length];
    ++counts.used;
    space += kSpace >> length;
  }
  const bool single = counts.used == 1 && counts.of[1] == 1;
  require(counts.used == 0 || single || space == kSpace, "Huffman lengths do not form a code");
  return counts;
}

uint32_t reversed(uint32_t code, unsigned length) {
  uint32_t out = 0;
  for (unsigned i = 0; i < length; ++i) out |= (code >> i & 1) << (length - 1 - i);
  return out;
}

Codes assign_codes(In<uint8_t> lengths) {
  const LengthCounts counts = count_lengths(lengths);
  uint32_t next[kMaxLength + 1] = {};
  for (unsigned length = 1; length < kMaxLength; ++length)
    next[length + 1] = static_cast<uint32_t>(next[length] + counts.of[length]) << 1;
  Codes codes;
  for (size_t s = 0; s < lengths.size(); ++s)
    if (const unsigned length = lengths.data()[s]) codes[s] = {reversed(next[length]++, length), length};
  return codes;
}

Out<uint32_t> huffman_codes(In<uint8_t> lengths) {
  const Codes codes = assign_codes(lengths);
  Buffer<uint32_t> out(lengths.size());
  for (size_t s = 0; s < lengths.size(); ++s) out.data()[s] = codes[s].bits;
  return out.release();
}

// --- lengths -----------------------------------------------------------------------------------------------------

struct Node {
  int64_t weight;
  int symbol;  // the first of those below it
  int at;

  bool operator>(const Node& other) const {
    return weight != other.weight ? weight > other.weight : symbol > other.symbol;
  }
};

// Huffman's tree over the leaves; the longest way from its root to one.
unsigned fill_depths(const std::vector<Node>& leaves, uint8_t* lengths) {
  std::priority_queue<Node, std::vector<Node>, std::greater<>> heap(std::greater<>{}, leaves);
  std::vector<int> parents(2 * leaves.size() - 1);
  for (int next = static_cast<int>(leaves.size()); heap.size() > 1; ++next) {
    const Node first = heap.top();
    heap.pop();
    const Node second = heap.top();
    heap.pop();
    parents[first.at] = parents[second.at] = next;
    heap.push({first.weight + second.weight, std::min(first.symbol, second.symbol), next});
  }
  std::vector<unsigned> depths(parents.size(), leaves.size() == 1);
  for (size_t i = parents.size() - 1; i-- > 0;) depths[i] = depths[parents[i]] + 1;
  for (const Node& leaf : leaves) lengths[leaf.symbol] = static_cast<uint8_t>(depths[leaf.at]);
  return *std::max_element(depths.begin(), depths.end());
}

Out<uint8_t> huffman_lengths(In<int64_t> counts) {
  require(counts.size() <= 256, "there are too many symbols");
  std::vector<Node> leaves;
  for (size_t s = 0; s < counts.size(); ++s) {
    const int64_t count = counts.data()[s];
    require(count >= 0 && count < int64_t{1} << 54, "a count is out of range");
    if (count) leaves.push_back({count, static_cast<int>(s), static_cast<int>(leaves.size())});
  }
  Buffer<uint8_t> out(counts.size());
  std::fill_n(out.data(), counts.size(), 0);
  while (!leaves.empty() && fill_depths(leaves, out.data()) > kMaxLength)
    for (Node& leaf : leaves) leaf.weight = (leaf.weight + 1) / 2;
  return out.release();
}

// --- gaps --------------------------------------------------------------------------------------------------------

template <class Gap>
SPARSEWIRE_INLINE void split(const Gap* gaps, size_t count, uint8_t* symbols, uint8_t* extra) {
  for (size_t i = 0; i < count; ++i) {
    const unsigned exponent = bit_length(gaps[i] | 1) - 1, below = exponent - (exponent > 0);
    symbols[i] = static_cast<uint8_t>(2 * below + (gaps[i] >> below));
    extra[i] = static_cast<uint8_t>(below);
  }
}

template <class Gap>
nb::tuple gap_symbols(In<Gap> gaps) {
  Buffer<uint8_t> symbols(gaps.size()), extra(gaps.size());
  without_gil([&] { split(gaps.data(), gaps.size(), symbols.data(), extra.data()); });
  return nb::make_tuple(symbols.release(), extra.release());
}

// --- encoding ----------------------------------------------------------------------------------------------------

// Four codes have at most 48 bits: one append. Returns the bytes written, or -1 where a symbol has no code.
SPARSEWIRE_INLINE ptrdiff_t encode(const uint8_t* symbols, size_t count, const Codes& codes, uint8_t* to) {
  BitWriter out(to);
  bool bad = false;
  size_t i = 0;
  for (; i + 4 <= count; i += 4) {
    const Code a = codes[symbols[i]], b = codes[symbols[i + 1]], c = codes[symbols[i + 2]], d = codes[symbols[i + 3]];
    bad |= !a.length | !b.length | !c.length | !d.length;
    const uint64_t first = a.bits | b.bits << a.length, second = c.bits | d.bits << c.length;
    const unsigned half = a.length + b.length;
    out.append(first | second << half, half + c.length + d.length);
  }
  for (; i < count; ++i) {
    bad |= !codes[symbols[i]].length;
    out.append(codes[symbols[i]].bits, codes[symbols[i]].length);
  }
  return bad ? -1 : static_cast<ptrdiff_t>(out.bytes());
}

Out<uint8_t> huffman_encode(In<uint8_t> symbols, In<uint8_t> lengths) {
  const Codes codes = assign_codes(lengths);
  uint64_t longest = 0;
  for (const Code& code : codes) longest = std::max<uint64_t>(longest, code.length);
  Buffer<uint8_t> out(bytes_of(symbols.size() * longest) + BitWriter::kSlack);
  const ptrdiff_t size = without_gil([&] {
    return fastest([&codes, from = symbols.data(), count = symbols.size(), to = out.data()](auto)
                       SPARSEWIRE_FLATTEN { return encode(from, count, codes, to); });
  });
  require(size >= 0, "a symbol has no Huffman code");
  return out.release(static_cast<size_t>(size));
}

// --- decoding ----------------------------------------------------------------------------------------------------

// By the next 12 bits: symbol << 8 | length, and 0 for bits that are no code.
using Table = std::array<uint16_t, kSpace>;

void fill_table(const Codes& codes, Table& table) {
  table.fill(0);
  for (size_t s = 0; s < codes.size(); ++s)
    if (codes[s].length)
      for (size_t bits = codes[s].bits; bits < kSpace; bits += size_t{1} << codes[s].length)
        table[bits] = static_cast<uint16_t>(s << 8 | codes[s].length);
}

SPARSEWIRE_INLINE bool decode(const uint8_t* data, size_t size, const Table& table, uint8_t* out, size_t count) {
  uint64_t bit = 0;
  bool bad = false;
  size_t i = 0;
  // A word holds 57 bits from any bit on, and so at least four codes.
  for (; i + 4 <= count && (bit >> 3) + 8 <= size; i += 4) {
    uint64_t word = load64(data + (bit >> 3)) >> (bit & 7);
    for (size_t j = i; j < i + 4; ++j) {
      const unsigned entry = table[word & (kSpace - 1)];
      out[j] = static_cast<uint8_t>(entry >> 8);
      bad |= entry == 0;
      word >>= entry & 63;  // the length, with a mask that costs nothing
      bit += entry & 63;
    }
  }
  for (; i < count && !bad; ++i) {
    if ((bit >> 3) >= size) return false;
    const unsigned entry = table[load_some(data + (bit >> 3), size - (bit >> 3)) >> (bit & 7) & (kSpace - 1)];
    out[i] = static_cast<uint8_t>(entry >> 8);
    bit += entry & 63;
    bad |= entry == 0 || bit > 8 * uint64_t{size};
  }
  return !bad && size == bytes_of(bit);
}

Out<uint8_t> huffman_decode(In<uint8_t> data, In<uint8_t> lengths, int64_t count_) {
  const Codes codes = assign_codes(lengths);
  const size_t count = to_count(count_);
  require(count <= 8 * uint64_t{data.size()}, "the Huffman stream is too short");
  Buffer<uint8_t> out(count);
  const bool good = without_gil([&] {
    Table table;
    fill_table(codes, table);
    return fastest([&table, from = data.data(), size = data.size(), to = out.data(), count](auto)
                       SPARSEWIRE_FLATTEN { return decode(from, size, table, to, count); });
  });
  require(good, "the Huffman stream is too short, too long or holds an unknown code");
  return out.release();
}

const Binder binder([](nb::module_& m) {
  m.def("gap_symbols", &gap_symbols<uint32_t>, nb::arg("gaps").noconvert());
  m.def("gap_symbols", &gap_symbols<uint64_t>, nb::arg("gaps").noconvert());
  m.def("huffman_lengths", &huffman_lengths, nb::arg("counts").noconvert());
  m.def("huffman_codes", &huffman_codes, nb::arg("lengths").noconvert());
  m.def("huffman_encode", &huffman_encode, nb::arg("symbols").noconvert(), nb::arg("lengths").noconvert());
  m.def("huffman_decode", &huffman_decode, nb::arg("data").noconvert(), nb::arg("lengths").noconvert(),
        nb::arg("count"));
});

}  // namespace
}  // namespace sparsewire
