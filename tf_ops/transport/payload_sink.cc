#include "tf_ops/transport/payload_sink.h"

#include <algorithm>

namespace ring_keras {
namespace {

// Stays in L2. Frames begin at multiples of 64 bytes, so that neither they nor
// this cut an element.
constexpr size_t kScratchBytes = 64 << 10;

}  // namespace

void PayloadSink::Begin(const FrameHeader& header, Destination destination) {
  destination_ = std::move(destination);
  offset_ = header.offset;
  nbytes_ = header.nbytes;
  taken_ = 0;
  if (auto* collect = std::get_if<Collect>(&destination_)) {
    collect->bytes.resize(nbytes_);
  }
}

char* PayloadSink::scratch() {
  if (scratch_ == nullptr) scratch_.reset(new char[kScratchBytes]);
  return scratch_.get();
}

std::pair<char*, size_t> PayloadSink::Next() {
  const size_t left = nbytes_ - taken_;
  if (auto* collect = std::get_if<Collect>(&destination_)) {
    return {collect->bytes.data() + taken_, left};
  }
  if (const auto* fill = std::get_if<Fill>(&destination_)) {
    return {fill->operation->target + offset_ + taken_, left};
  }
  // Whole scratch buffers are combined.
  const size_t filled = std::holds_alternative<Combine>(destination_)
                            ? taken_ % kScratchBytes
                            : 0;
  return {scratch() + filled, std::min(left, kScratchBytes - filled)};
}

void PayloadSink::Took(size_t count) {
  const size_t filled = taken_ % kScratchBytes + count;
  taken_ += count;
  const auto* combine = std::get_if<Combine>(&destination_);
  if (combine == nullptr || (filled < kScratchBytes && !complete())) return;
  ReceiveOperation* operation = combine->operation;
  char* target = operation->target + offset_ + taken_ - filled;
  operation->combine(target, target, scratch_.get(),
                     filled / operation->element_nbytes);
}

}  // namespace ring_keras
