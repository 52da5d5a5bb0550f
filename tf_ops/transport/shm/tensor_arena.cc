#include "tf_ops/transport/shm/tensor_arena.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <iterator>

#include "tf_ops/common/logging.h"

namespace ring_keras {
namespace {

// Never destroyed: tensors may be freed while the process ends.
std::atomic<TensorArena*> of_process{nullptr};

}  // namespace

StatusOr<std::unique_ptr<TensorArena>> TensorArena::Create() {
  auto memory = CreateSealedMemory("ring_keras_tensors", kBytes);
  RING_KERAS_RETURN_IF_ERROR(memory.status());
  auto nonce = NewNonce();
  RING_KERAS_RETURN_IF_ERROR(nonce.status());
  auto base = MapSealedMemory(memory.value(), kBytes);
  RING_KERAS_RETURN_IF_ERROR(base.status());
  std::memcpy(base.value(), nonce.value().data(), nonce.value().size());
  std::unique_ptr<TensorArena> arena(
      new TensorArena(std::move(memory.value()), base.value()));
  arena->child_copies_.emplace("large tensors", arena->data(), kTensorAreaBytes,
                               [own = arena.get()] { return own->Taken(); });
  return arena;
}

StatusOr<std::unique_ptr<TensorArena>> TensorArena::Attach(
    int pid, int descriptor, const SegmentNonce& nonce) {
  auto memory = OpenSealedMemory(pid, descriptor, kBytes);
  RING_KERAS_RETURN_IF_ERROR(memory.status());
  auto base = MapSealedMemory(memory.value(), kBytes);
  RING_KERAS_RETURN_IF_ERROR(base.status());
  std::unique_ptr<TensorArena> arena(
      new TensorArena(std::move(memory.value()), base.value()));
  if (arena->nonce() != nonce) return NotTheMemory(pid, descriptor);
  // Mapped is enough: there may be hundreds on a host.
  arena->descriptor_.Close();
  return arena;
}

TensorArena* TensorArena::OfProcess() {
  return of_process.load(std::memory_order_acquire);
}

Status TensorArena::CreateForProcess() {
  static std::mutex mutex;
  std::lock_guard<std::mutex> lock(mutex);
  if (OfProcess() != nullptr) return Status::Ok();
  auto arena = Create();
  RING_KERAS_RETURN_IF_ERROR(arena.status());
  of_process.store(arena.value().release(), std::memory_order_release);
  return Status::Ok();
}

TensorArena::~TensorArena() {
  // In a forked child other things may be where a peer's was.
  if (owner_.IsThis()) munmap(base_, kBytes);
}

void TensorArena::NoteTaken(void* data, size_t nbytes) {
  std::lock_guard<std::mutex> lock(taken_mutex_);
  taken_[static_cast<char*>(data)] = nbytes;
}

void TensorArena::NoteReturned(void* data) {
  std::lock_guard<std::mutex> lock(taken_mutex_);
  taken_.erase(static_cast<char*>(data));
}

std::vector<UsedBlock> TensorArena::Taken() const {
  std::vector<UsedBlock> blocks;
  std::lock_guard<std::mutex> lock(taken_mutex_);
  for (const auto& [data, nbytes] : taken_) blocks.push_back({data, nbytes});
  return blocks;
}

const SegmentNonce& TensorArena::nonce() const {
  return *reinterpret_cast<const SegmentNonce*>(base_);
}

std::optional<uint64_t> TensorArena::OffsetOf(const void* data,
                                              size_t nbytes) const {
  const auto begin = reinterpret_cast<uintptr_t>(this->data());
  const auto at = reinterpret_cast<uintptr_t>(data);
  if (at < begin || !IsWithin(at - begin, nbytes)) return std::nullopt;
  const uint64_t offset = at - begin;
  if (any_isolated_.load(std::memory_order_acquire)) {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto after = isolated_.lower_bound(offset + nbytes);
    if (after != isolated_.begin()) {
      const auto last = std::prev(after);
      if (last->first + last->second > offset) return std::nullopt;
    }
  }
  return offset;
}

void TensorArena::Isolate(uint64_t offset, size_t nbytes) {
  char* data = this->data() + offset;
  const size_t size = WholePages(nbytes);
  std::lock_guard<std::mutex> lock(mutex_);
  any_isolated_.store(true, std::memory_order_release);
  isolated_[offset] = size;
  madvise(data, size, MADV_REMOVE);
  if (ReplaceByPrivate(data, size)) return;
  Log(LogLevel::kError,
      StrCat("cannot take ", nbytes,
             " bytes of tensors away from the other ranks, which may still "
             "write to them: ",
             ErrnoMessage(errno), ". Restart this process."));
}

}  // namespace ring_keras
