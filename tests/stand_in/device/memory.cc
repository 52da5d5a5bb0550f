#include "tests/stand_in/device/memory.h"

#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>

#include "tests/stand_in/cuda_abi.h"
#include "tests/stand_in/device/device.h"
#include "tests/stand_in/stand_in.h"

namespace ring_keras::stand_in {
namespace {

constexpr size_t kAlignment = 256;  // Of cudaMalloc.
constexpr int kPattern = 0xa5;

struct Block {
  uintptr_t begin;
  size_t size;
  uintptr_t mapping;
  size_t mapping_size;
  MemoryKind kind;
  int device;
  bool is_free;
};

size_t RoundUp(size_t value, size_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

class Memory {
 public:
  // Never destroyed: threads of streams outlive main().
  static Memory& Get() {
    static auto* memory = new Memory;
    return *memory;
  }

  void* Allocate(MemoryKind kind, int device, size_t size) {
    const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    // The block ends where its last page does, and a page follows that cannot
    // be touched: to run past the end is a fault.
    const size_t used = RoundUp(size, kAlignment);
    const size_t pages = RoundUp(used, page);
    void* mapping = mmap(nullptr, pages + page, PROT_NONE,
                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (mapping == MAP_FAILED) return nullptr;
    if (mprotect(mapping, pages, PROT_READ | PROT_WRITE) != 0) {
      munmap(mapping, pages + page);
      return nullptr;
    }
    char* begin = static_cast<char*>(mapping) + (pages - used);
    std::memset(begin, kPattern, used);
    const Block block = {reinterpret_cast<uintptr_t>(begin),
                         size,
                         reinterpret_cast<uintptr_t>(mapping),
                         pages,
                         kind,
                         device,
                         false};
    std::lock_guard lock(mutex_);
    blocks_[block.mapping] = block;
    if (kind == MemoryKind::kDevice) ++live_;
    return begin;
  }

  bool Free(MemoryKind kind, void* memory) {
    std::lock_guard lock(mutex_);
    Block* block = Find(reinterpret_cast<uintptr_t>(memory));
    if (block == nullptr || block->is_free || block->kind != kind ||
        block->begin != reinterpret_cast<uintptr_t>(memory)) {
      return false;
    }
    block->is_free = true;
    if (kind == MemoryKind::kDevice) --live_;
    // The addresses are never given out again, so that every later use of them
    // is a fault; the pages behind them are.
    void* mapping = reinterpret_cast<void*>(block->mapping);
    madvise(mapping, block->mapping_size, MADV_DONTNEED);
    mprotect(mapping, block->mapping_size, PROT_NONE);
    return true;
  }

  std::optional<Block> Lookup(const void* pointer) {
    std::lock_guard lock(mutex_);
    const Block* block = Find(reinterpret_cast<uintptr_t>(pointer));
    return block == nullptr ? std::nullopt : std::optional<Block>(*block);
  }

  // For the handler of a fault, which must not wait for a lock.
  std::optional<Block> TryLookup(const void* pointer) {
    std::unique_lock lock(mutex_, std::try_to_lock);
    if (!lock.owns_lock()) return std::nullopt;
    const Block* block = Find(reinterpret_cast<uintptr_t>(pointer));
    return block == nullptr ? std::nullopt : std::optional<Block>(*block);
  }

  int64_t live() {
    std::lock_guard lock(mutex_);
    return live_;
  }

 private:
  Memory();

  Block* Find(uintptr_t address) {
    auto after = blocks_.upper_bound(address);
    if (after == blocks_.begin()) return nullptr;
    Block& block = std::prev(after)->second;
    // With the page that follows, which belongs to the block's mistakes.
    const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    return address < block.mapping + block.mapping_size + page ? &block
                                                               : nullptr;
  }

  std::mutex mutex_;
  std::map<uintptr_t, Block> blocks_;
  int64_t live_ = 0;
};

struct sigaction previous_action;

// Says what a fault was, if it was in our memory, and lets who was responsible
// before us end the process.
void OnFault(int /*signal*/, siginfo_t* info, void* /*context*/) {
  if (const auto block = Memory::Get().TryLookup(info->si_addr)) {
    char text[256];
    const int length = std::snprintf(
        text, sizeof(text),
        "stand-in GPU: %s device memory at %p: %zu bytes at %p of device %d\n",
        block->is_free ? "use of freed" : "access out of bounds of",
        info->si_addr, block->size, reinterpret_cast<void*>(block->begin),
        block->device);
    (void)!write(STDERR_FILENO, text, static_cast<size_t>(length));
  }
  sigaction(SIGSEGV, &previous_action, nullptr);
}

Memory::Memory() {
  struct sigaction action = {};
  action.sa_sigaction = OnFault;
  action.sa_flags = SA_SIGINFO | SA_NODEFER;
  sigaction(SIGSEGV, &action, &previous_action);
}

}  // namespace

void* Allocate(MemoryKind kind, int device, size_t size) {
  return Memory::Get().Allocate(kind, device, size);
}

bool Free(MemoryKind kind, void* memory) {
  return Memory::Get().Free(kind, memory);
}

std::optional<MemoryPlace> FindMemory(const void* pointer) {
  const auto block = Memory::Get().Lookup(pointer);
  if (!block || block->is_free) return std::nullopt;
  return MemoryPlace{block->kind, block->device};
}

void CheckAccess(const void* memory, size_t size, const char* user) {
  if (size == 0) return;
  const auto block = Memory::Get().Lookup(memory);
  const auto begin = reinterpret_cast<uintptr_t>(memory);
  const char* what = nullptr;
  if (!block) {
    what = "memory that is not the device's";
  } else if (block->is_free) {
    what = "freed memory";
  } else if (begin < block->begin ||
             begin + size > block->begin + block->size) {
    what = "memory out of bounds";
  } else {
    return;
  }
  std::fprintf(stderr, "stand-in GPU: %s uses %s: %zu bytes at %p\n", user,
               what, size, memory);
  std::abort();
}

}  // namespace ring_keras::stand_in

int RingKerasStandInTakeBack(void* memory) {
  using namespace ring_keras::stand_in;
  return Free(MemoryKind::kDevice, memory) ? kCudaSuccess : kCudaInvalidValue;
}

int64_t RingKerasStandInAllocations() {
  return ring_keras::stand_in::Memory::Get().live();
}
