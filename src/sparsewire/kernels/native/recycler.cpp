// The pool behind `Buffer`.
#include <array>
#include <mutex>

#include "common.hpp"

namespace sparsewire {
namespace {

constexpr size_t kSmallest = size_t{1} << 12;  // below, malloc keeps the pages itself
constexpr size_t kLargest = size_t{1} << 26;

struct Block {
  void* data = nullptr;
  size_t bytes = 0;
};

// Never destroyed: arrays may outlive everything else in the process.
struct Pool {
  std::mutex mutex;
  std::array<Block, 8> blocks;
  size_t next = 0;
};

Pool& pool() {
  static Pool* pool = new Pool;
  return *pool;
}

// A kept block that fits without wasting more than half of itself.
void* reuse(size_t bytes) {
  std::lock_guard<std::mutex> lock(pool().mutex);
  for (auto& block : pool().blocks)
    if (block.data && block.bytes >= bytes && block.bytes / 2 <= bytes) return std::exchange(block.data, nullptr);
  return nullptr;
}

}  // namespace

void* Recycler::take(size_t bytes) {
  void* data = bytes >= kSmallest && bytes <= kLargest ? reuse(bytes) : nullptr;
  if (!data) data = std::malloc(bytes ? bytes : 1);
  if (!data) throw std::bad_alloc();
  return data;
}

void Recycler::give(void* data, size_t bytes) noexcept {
  if (bytes >= kSmallest && bytes <= kLargest) {
    std::lock_guard<std::mutex> lock(pool().mutex);
    Block& block = pool().blocks[pool().next++ % pool().blocks.size()];
    std::swap(block.data, data);
    block.bytes = bytes;
  }
  std::free(data);
}

}  // namespace sparsewire
