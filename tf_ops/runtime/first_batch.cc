#include "tf_ops/runtime/first_batch.h"

#include <atomic>

namespace ring_keras {
namespace {

std::atomic<bool> awaited{false};
std::atomic<uint64_t> noted{0};

}  // namespace

void FirstBatchDigest::Add(const void* data, size_t nbytes) {
  constexpr uint64_t kPrime = 0x100000001b3;
  const auto* bytes = static_cast<const unsigned char*>(data);
  for (size_t i = 0; i < nbytes; ++i) value_ = (value_ ^ bytes[i]) * kPrime;
}

void AwaitFirstBatch() {
  noted = 0;
  awaited = true;
}

bool AwaitsFirstBatch() { return awaited.load(std::memory_order_relaxed); }

bool ClaimFirstBatch() {
  // Most steps only read it.
  return AwaitsFirstBatch() && awaited.exchange(false);
}

void NoteFirstBatch(const FirstBatchDigest& digest) { noted = digest.value(); }

uint64_t FirstBatch() { return noted; }

}  // namespace ring_keras
