// The parts of a sum over ranks: sparse entries of each, with narrow or wide indices.
#pragma once

#include <variant>

#include "entries.hpp"

namespace sparsewire {

template <class T, class Index>
struct RankPart {
  In<Index> indices;
  In<T> values;
};

template <class T>
using AnyPart = std::variant<RankPart<T, int32_t>, RankPart<T, int64_t>>;

// Fetches n entries from the first on: processors do not foresee where a part is read next, as blocks alternate.
template <class T>
void fetch(const T* first, size_t n) {
  for (size_t i = 0; i < n; i += 64 / sizeof(T)) __builtin_prefetch(first + i);
}

// Adds the entries below `end`, from entry `at` on, to a block that starts at `begin`; returns the first entry left. The
// next block is taken to have about as many.
template <class T, class Index>
size_t add_until(T* block, size_t begin, size_t end, const RankPart<T, Index>& part, T scale, size_t at) {
  const Index* indices = part.indices.data();
  const T* values = part.values.data();
  const size_t n = part.indices.size(), first = at;
  for (; at < n && static_cast<size_t>(indices[at]) < end; ++at) block[indices[at] - begin] += values[at] * scale;
  const size_t soon = std::min(n - at, 5 * (at - first) / 4 + 16);
  fetch(indices + at, soon);
  fetch(values + at, soon);
  return at;
}

// For each part the first entry that is not below `begin`.
template <class T>
void seek_parts(const std::vector<AnyPart<T>>& parts, size_t begin, size_t* cursors) {
  const auto first = [&](const auto& part) { return first_from(part.indices.data(), part.indices.size(), begin); };
  for (size_t p = 0; p < parts.size(); ++p) cursors[p] = std::visit(first, parts[p]);
}

// Adds all parts' entries in begin … end − 1, in the order of the parts, to a block that starts at `begin`.
template <class T>
void add_parts(T* block, size_t begin, size_t end, const std::vector<AnyPart<T>>& parts, T scale, size_t* cursors) {
  for (size_t p = 0; p < parts.size(); ++p) {
    const auto add = [&](const auto& part) { return add_until(block, begin, end, part, scale, cursors[p]); };
    cursors[p] = std::visit(add, parts[p]);
  }
}

template <class T>
AnyPart<T> to_part(nb::handle item) {
  nb::tuple pair;
  RankPart<T, int32_t> narrow;
  RankPart<T, int64_t> wide;
  if (nb::try_cast(item, pair, false) && pair.size() == 2) {
    if (nb::try_cast(pair[0], narrow.indices, false) && nb::try_cast(pair[1], narrow.values, false)) return narrow;
    if (nb::try_cast(pair[0], wide.indices, false) && nb::try_cast(pair[1], wide.values, false)) return wide;
  }
  throw nb::type_error("a part is a tuple of int32 or int64 indices and values of the output's type, both contiguous");
}

template <class T>
std::vector<AnyPart<T>> to_parts(const nb::sequence& list) {
  std::vector<AnyPart<T>> parts;
  for (nb::handle item : list) parts.push_back(to_part<T>(item));
  return parts;
}

template <class T>
void require_parts(const std::vector<AnyPart<T>>& parts, size_t size) {
  const auto check = [&](const auto& part) {
    require(part.indices.size() == part.values.size(), "a part has as many indices as values");
    require(fits(part.indices.data(), part.indices.size(), size),
            "a part's indices must ascend and lie within the output");
  };
  for (const auto& any : parts) std::visit(check, any);
}

}  // namespace sparsewire
