// A stream within one process, whose bytes a test can see, change and hold
// back.
#ifndef RING_KERAS_TESTS_SUPPORT_MEMORY_STREAM_H_
#define RING_KERAS_TESTS_SUPPORT_MEMORY_STREAM_H_

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <deque>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "tf_ops/transport/stream.h"

namespace ring_keras {

// A pipe in memory that moves at most `chunk_nbytes` at a time.
struct MemoryPipe {
  std::string bytes;
  size_t read_count = 0;
  size_t chunk_nbytes = SIZE_MAX;
  bool held = false;    // Keeps what is in it to itself.
  bool ended = false;   // Nothing follows what is in it.
  bool broken = false;  // Takes nothing more.
  // Where payloads go around the bytes: those that were sent and not received.
  size_t direct_nbytes = std::numeric_limits<size_t>::max();
  std::deque<std::pair<const char*, size_t>> direct;
  size_t direct_taken = 0;  // Of which the sender has not been told.
  bool direct_held = false;
};

class MemoryStream : public Stream {
 public:
  MemoryStream(MemoryPipe* out, MemoryPipe* in) : out_(out), in_(in) {}

  ssize_t TryWrite(const void* data, size_t nbytes) override {
    if (out_->broken) return kClosed;
    const size_t count = std::min(nbytes, out_->chunk_nbytes);
    out_->bytes.append(static_cast<const char*>(data), count);
    return static_cast<ssize_t>(count);
  }
  ssize_t TryRead(void* data, size_t nbytes) override {
    if (in_->held) return 0;
    const size_t left = in_->bytes.size() - in_->read_count;
    if (left == 0) return in_->ended ? kClosed : 0;
    const size_t count = std::min({nbytes, in_->chunk_nbytes, left});
    std::memcpy(data, in_->bytes.data() + in_->read_count, count);
    in_->read_count += count;
    return static_cast<ssize_t>(count);
  }
  size_t direct_nbytes() const override { return out_->direct_nbytes; }
  void SendDirect(const void* data, size_t nbytes, Owner owner) override {
    out_->direct.emplace_back(static_cast<const char*>(data), nbytes);
    owners_.push_back(std::move(owner));
  }
  void ReceiveDirect(void* data, size_t nbytes, Owner owner) override {
    receives_.emplace_back(static_cast<char*>(data), nbytes);
    owners_.push_back(std::move(owner));
  }
  bool EndDirectSend() override {
    if (out_->direct_taken == 0) return false;
    --out_->direct_taken;
    return true;
  }
  bool EndDirectReceive() override {
    if (in_->direct_held || receives_.empty() || in_->direct.empty()) {
      return false;
    }
    const auto [from, nbytes] = in_->direct.front();
    if (nbytes != receives_.front().second) return false;
    std::memcpy(receives_.front().first, from, nbytes);
    receives_.pop_front();
    in_->direct.pop_front();
    ++in_->direct_taken;
    return true;
  }
  Status end() const override {
    const bool all_read = in_->read_count == in_->bytes.size();
    return in_->ended && all_read ? Status(StatusCode::kPeerLost, "ended")
                                  : Status::Ok();
  }
  bool delivered() const override { return true; }
  void CloseForWriting() override { out_->ended = true; }

 private:
  MemoryPipe* out_;
  MemoryPipe* in_;
  std::deque<std::pair<char*, size_t>> receives_;
  std::vector<Owner> owners_;
};

}  // namespace ring_keras

#endif  // RING_KERAS_TESTS_SUPPORT_MEMORY_STREAM_H_
