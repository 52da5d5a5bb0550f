// A stream within one process, whose bytes a test can see, change and hold
// back.
#ifndef RING_KERAS_TESTS_SUPPORT_MEMORY_STREAM_H_
#define RING_KERAS_TESTS_SUPPORT_MEMORY_STREAM_H_

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>

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
};

}  // namespace ring_keras

#endif  // RING_KERAS_TESTS_SUPPORT_MEMORY_STREAM_H_
