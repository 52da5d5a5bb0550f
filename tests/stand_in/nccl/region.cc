#include "tests/stand_in/nccl/region.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <cstdio>
#include <map>
#include <mutex>
#include <random>

namespace ring_keras::stand_in {
namespace {

constexpr uint32_t kMagic = 0x52494e47;

// Descriptors of regions that were made here, by nonce.
struct OpenRegions {
  std::mutex mutex;
  std::map<uint64_t, int> descriptors;

  static OpenRegions& Get() {
    static auto* regions = new OpenRegions;
    return *regions;
  }
};

RegionContent* Map(int descriptor) {
  void* memory = mmap(nullptr, sizeof(RegionContent), PROT_READ | PROT_WRITE,
                      MAP_SHARED, descriptor, 0);
  return memory == MAP_FAILED ? nullptr : static_cast<RegionContent*>(memory);
}

uint64_t RandomNonce() {
  std::random_device random;
  return (uint64_t{random()} << 32 | random()) | 1;
}

}  // namespace

bool Region::Create(RegionName* name) {
  const int descriptor = memfd_create("ring-keras-stand-in", MFD_CLOEXEC);
  if (descriptor < 0) return false;
  RegionContent* content = nullptr;
  if (ftruncate(descriptor, sizeof(RegionContent)) == 0) {
    content = Map(descriptor);
  }
  if (content == nullptr) {
    close(descriptor);
    return false;
  }
  *name = {kMagic, getpid(), descriptor, 0, RandomNonce()};
  content->nonce = name->nonce;
  munmap(content, sizeof(RegionContent));
  OpenRegions& regions = OpenRegions::Get();
  std::lock_guard lock(regions.mutex);
  regions.descriptors[name->nonce] = descriptor;
  return true;
}

std::shared_ptr<Region> Region::Open(const RegionName& name) {
  if (name.magic != kMagic) return nullptr;
  char path[64];
  std::snprintf(path, sizeof(path), "/proc/%d/fd/%d", name.pid,
                name.descriptor);
  const int descriptor = open(path, O_RDWR | O_CLOEXEC);
  if (descriptor < 0) return nullptr;
  // The number may be another file's by now.
  const bool is_whole = lseek(descriptor, 0, SEEK_END) ==
                        static_cast<off_t>(sizeof(RegionContent));
  RegionContent* content = is_whole ? Map(descriptor) : nullptr;
  close(descriptor);
  if (content == nullptr) return nullptr;
  auto region = std::make_shared<Region>(content);
  return content->nonce == name.nonce ? region : nullptr;
}

void Region::Release(const RegionName& name) {
  OpenRegions& regions = OpenRegions::Get();
  std::lock_guard lock(regions.mutex);
  const auto found = regions.descriptors.find(name.nonce);
  if (found == regions.descriptors.end()) return;
  close(found->second);
  regions.descriptors.erase(found);
}

Region::~Region() { munmap(content_, sizeof(RegionContent)); }

void Region::Ring(int rank) {
  std::atomic<uint32_t>& doorbell = content_->ranks[rank].doorbell;
  ++doorbell;
  syscall(SYS_futex, &doorbell, FUTEX_WAKE, kMaxRanks, nullptr, nullptr, 0);
}

void Region::RingAll() {
  for (int rank = 0; rank < content_->size; ++rank) Ring(rank);
}

void Region::Sleep(int rank, uint32_t seen) {
  constexpr timespec kLongest = {0, 20'000'000};
  syscall(SYS_futex, &content_->ranks[rank].doorbell, FUTEX_WAIT, seen,
          &kLongest, nullptr, 0);
}

}  // namespace ring_keras::stand_in
