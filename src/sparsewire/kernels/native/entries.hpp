// Sparse entries: ascending indices into a dense array.
#pragma once

#include <algorithm>

#include "common.hpp"

namespace sparsewire {

constexpr size_t kWorker = size_t{1} << 17;  // the least elements of a dense array for a thread

// Whether the indices ascend within 0 … size − 1: for ascending ones the first and the last decide.
template <class Index>
bool fits(const Index* indices, size_t n, size_t size) {
  if (n == 0) return true;
  if (indices[0] < 0 || static_cast<uint64_t>(indices[n - 1]) >= size) return false;
  Index disorder = 0;
  for (size_t i = 1; i < n; ++i) disorder |= indices[i - 1] >= indices[i];
  return !disorder;
}

// The first entry that is not below `begin`.
template <class Index>
size_t first_from(const Index* indices, size_t n, size_t begin) {
  const auto below = [&](Index index) { return static_cast<size_t>(index) < begin; };
  return std::partition_point(indices, indices + n, below) - indices;
}

}  // namespace sparsewire
