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
// So much goes around the flow at a time, or one payload. The peer has to have
// memory for what it is not ready for as soon as it reads the headers.
constexpr size_t kMaxDirectBytes = size_t{256} << 20;

}  // namespace

int OutgoingFrames::Frame::AddParts(iovec* parts) const {
  int count = 0;
  if (sent < owned.size()) {
    parts[count++] = {const_cast<char*>(owned.data()) + sent,
                      owned.size() - sent};
  }
  if (data_nbytes > 0 && !direct) {
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
  bool moved = EndDirect(stream);
  moved |= stream.Advance();
  const size_t direct_nbytes = stream.direct_nbytes();
  while (!broken_ && !frames_.empty()) {
    iovec parts[kGatherParts];
    int part_count = 0;
    size_t around_nbytes = direct_under_way_nbytes_;
    for (Frame& frame : frames_) {
      if (part_count + 2 > kGatherParts) break;
      frame.direct = frame.data_nbytes >= direct_nbytes;
      if (frame.direct) {
        const bool fits = around_nbytes == 0 ||
                          around_nbytes + frame.data_nbytes <= kMaxDirectBytes;
        if (!fits && frame.sent == 0) break;
        around_nbytes += frame.data_nbytes;
      }
      part_count += frame.AddParts(parts + part_count);
    }
    if (part_count == 0) break;
    const ssize_t count = stream.TryGather(parts, part_count);
    if (count == Stream::kClosed) Break();
    if (count <= 0) break;
    Drop(static_cast<size_t>(count), stream);
    moved = true;
  }
  stream_holds_back_ = stream.holds_back();
  Count();
  return moved;
}

bool OutgoingFrames::EndDirect(Stream& stream) {
  bool ended = false;
  while (!direct_.empty() && stream.EndDirectSend()) {
    SendOperation* const operation = direct_.front().operation;
    if (operation != nullptr) --operation->frames_left;
    direct_under_way_nbytes_ -= direct_.front().nbytes;
    direct_.pop_front();
    ended = true;
  }
  return ended;
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

void OutgoingFrames::Drop(size_t sent_nbytes, Stream& stream) {
  while (sent_nbytes > 0) {
    Frame& frame = frames_.front();
    const size_t step = std::min(sent_nbytes, frame.nbytes() - frame.sent);
    frame.sent += step;
    sent_nbytes -= step;
    if (frame.sent < frame.nbytes()) return;
    if (frame.direct) {
      direct_.push_back({frame.key, frame.operation, frame.data_nbytes,
                         frame.copy != nullptr});
      direct_under_way_nbytes_ += frame.data_nbytes;
      stream.SendDirect(frame.data, frame.data_nbytes, std::move(frame.copy));
    } else if (frame.operation != nullptr) {
      --frame.operation->frames_left;
    }
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
      frame->copy.reset(new char[frame->data_nbytes]);
      if (frame->data_nbytes > 0) {
        std::memcpy(frame->copy.get(), frame->data, frame->data_nbytes);
      }
      frame->data = frame->copy.get();
      frame->operation = nullptr;
      ++frame;
    }
  }
  for (Direct& direct : direct_) {
    if (direct.key == key) direct.operation = nullptr;
  }
  Count();
}

bool OutgoingFrames::Serves(uint64_t key) const {
  const auto serves = [&](const auto& one) {
    return one.key == key && one.operation != nullptr;
  };
  return std::any_of(frames_.begin(), frames_.end(), serves) ||
         std::any_of(direct_.begin(), direct_.end(), serves);
}

bool OutgoingFrames::Holds(uint64_t key) const {
  return std::any_of(direct_.begin(), direct_.end(), [&](const Direct& direct) {
    return direct.key == key && !direct.is_copy;
  });
}

}  // namespace ring_keras
