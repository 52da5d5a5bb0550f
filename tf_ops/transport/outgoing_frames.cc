#include "tf_ops/transport/outgoing_frames.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace ring_keras {
namespace {

// Payloads up to this size are copied behind their header.
constexpr size_t kCopyBytes = 8 << 10;
// Pieces of memory that one write takes.
constexpr int kGatherParts = 16;

}  // namespace

int OutgoingFrames::Frame::AddParts(iovec* parts) const {
  int count = 0;
  if (sent < owned.size()) {
    parts[count++] = {const_cast<char*>(owned.data()) + sent,
                      owned.size() - sent};
  }
  if (data_nbytes > 0) {
    const size_t data_sent = sent - std::min(sent, owned.size());
    parts[count++] = {const_cast<char*>(data) + data_sent,
                      data_nbytes - data_sent};
  }
  return count;
}

void OutgoingFrames::PushControl(FrameType type, uint64_t key,
                                 const std::string& payload) {
  FrameHeader header;
  header.type = type;
  header.key = key;
  header.nbytes = payload.size();
  Frame frame;
  frame.key = key;
  frame.owned.resize(sizeof(header) + payload.size());
  std::memcpy(frame.owned.data(), &header, sizeof(header));
  std::memcpy(frame.owned.data() + sizeof(header), payload.data(),
              payload.size());
  Push(std::move(frame));
}

void OutgoingFrames::PushData(const FrameHeader& header, const char* data,
                              SendOperation* operation) {
  Frame frame;
  frame.key = header.key;
  frame.operation = operation;
  const bool copy = header.nbytes <= kCopyBytes;
  frame.owned.resize(sizeof(header) + (copy ? header.nbytes : 0));
  std::memcpy(frame.owned.data(), &header, sizeof(header));
  if (copy) {
    std::memcpy(frame.owned.data() + sizeof(header), data, header.nbytes);
  } else {
    frame.data = data;
    frame.data_nbytes = header.nbytes;
  }
  ++operation->frames_left;
  Push(std::move(frame));
}

void OutgoingFrames::Push(Frame frame) {
  frames_.push_back(std::move(frame));
  Count();
}

bool OutgoingFrames::WriteTo(Stream& stream) {
  bool moved = stream.Advance();
  while (!broken_ && !frames_.empty()) {
    iovec parts[kGatherParts];
    int part_count = 0;
    for (const Frame& frame : frames_) {
      if (part_count + 2 > kGatherParts) break;
      part_count += frame.AddParts(parts + part_count);
    }
    const ssize_t count = stream.TryGather(parts, part_count);
    if (count == Stream::kClosed) Break();
    if (count <= 0) break;
    Drop(static_cast<size_t>(count));
    moved = true;
  }
  stream_holds_back_ = stream.holds_back();
  Count();
  return moved;
}

void OutgoingFrames::Break() {
  broken_ = true;
  Count();
}

void OutgoingFrames::Count() {
  const bool unsent = !broken_ && (stream_holds_back_ || !frames_.empty());
  if (unsent == counted_ || unsent_ == nullptr) return;
  counted_ = unsent;
  // One writer, so that nothing needs to be atomic as a whole.
  const int others = unsent_->load(std::memory_order_relaxed);
  unsent_->store(others + (unsent ? 1 : -1), std::memory_order_relaxed);
}

void OutgoingFrames::Drop(size_t sent_nbytes) {
  while (sent_nbytes > 0) {
    Frame& frame = frames_.front();
    const size_t step = std::min(sent_nbytes, frame.nbytes() - frame.sent);
    frame.sent += step;
    sent_nbytes -= step;
    if (frame.sent < frame.nbytes()) return;
    if (frame.operation != nullptr) --frame.operation->frames_left;
    frames_.pop_front();
  }
}

void OutgoingFrames::Cancel(uint64_t key) {
  for (auto frame = frames_.begin(); frame != frames_.end();) {
    if (frame->key != key || frame->operation == nullptr) {
      ++frame;
    } else if (frame->sent == 0) {
      frame = frames_.erase(frame);
    } else {
      frame->owned.insert(frame->owned.end(), frame->data,
                          frame->data + frame->data_nbytes);
      frame->data_nbytes = 0;
      frame->operation = nullptr;
      ++frame;
    }
  }
  Count();
}

bool OutgoingFrames::Serves(uint64_t key) const {
  return std::any_of(frames_.begin(), frames_.end(), [&](const Frame& frame) {
    return frame.key == key && frame.operation != nullptr;
  });
}

}  // namespace ring_keras
