// The pool behind `Buffer`.
#if defined(__linux__)
#include <sys/mman.h>
#endif

#include <array>
#include <mutex>

#include "common.hpp"

namespace sparsewire {
namespace {

constexpr size_t kSmallest = size_t{1} << 12;  // below, malloc keeps the pages itself
constexpr size_t kMost = size_t{1} << 26;      // in all
constexpr size_t kHuge = size_t{1} << 21;      // a large page

struct Block {
  void* data = nullptr;
  size_t bytes = 0;
};

// Never destroyed: arrays may outlive everything else in the process.
struct Pool {
  std::mutex mutex;
  std::array<Block, 8> blocks;
  size_t next = 0, kept = 0;

  void* take(Block& block) {
    kept -= std::exchange(block.bytes, 0);
    return std::exchange(block.data, nullptr);
  }

  // The oldest go until there is room.
  void keep(void* data, size_t bytes) noexcept {
    for (size_t i = 0; i < blocks.size() && (i == 0 || kept + bytes > kMost); ++i)
      std::free(take(blocks[(next + i) % blocks.size()]));
    blocks[next++ % blocks.size()] = {data, bytes};
    kept += bytes;
  }
};

Pool& pool() {
  static Pool* pool = new Pool;
  return *pool;
}

bool worth_keeping(size_t bytes) { return bytes >= kSmallest && bytes <= kMost; }

// A kept block that fits without wasting more than half of itself.
void* reuse(size_t bytes) {
  std::lock_guard<std::mutex> lock(pool().mutex);
  for (auto& block : pool().blocks)
    if (block.data && block.bytes >= bytes && block.bytes / 2 <= bytes) return pool().take(block);
  return nullptr;
}

size_t recycler_bytes() {
  std::lock_guard<std::mutex> lock(pool().mutex);
  return pool().kept;
}

const Binder binder([](nb::module_& m) { m.def("recycler_bytes", &recycler_bytes); });

// Large pages where the system has them: a fault for each small one costs more than most kernels do.
void* fresh(size_t bytes) {
#if defined(__linux__)
  void* data = nullptr;
  if (bytes >= 2 * kHuge) {
    if (posix_memalign(&data, kHuge, bytes)) return nullptr;
    madvise(data, bytes, MADV_HUGEPAGE);
    return data;
  }
#endif
  return std::malloc(bytes ? bytes : 1);
}

}  // namespace

void* Recycler::take(size_t bytes) {
  void* data = worth_keeping(bytes) ? reuse(bytes) : nullptr;
  if (!data) data = fresh(bytes);
  if (!data) throw std::bad_alloc();
  return data;
}

void Recycler::give(void* data, size_t bytes) noexcept {
  if (!worth_keeping(bytes)) return std::free(data);
  std::lock_guard<std::mutex> lock(pool().mutex);
  pool().keep(data, bytes);
}

}  // namespace sparsewire
