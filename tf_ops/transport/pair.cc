#include "tf_ops/transport/pair.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

#include "tf_ops/common/status.h"

namespace ring_keras {
namespace {

// Frames up to this size are sent in one piece with their header.
constexpr size_t kCoalesceBytes = 8 << 10;
// A message is not cut into frames smaller than this.
constexpr size_t kMinFrameBytes = 128 << 10;
// Combining reads through a buffer of this size, which stays in L2.
constexpr size_t kScratchBytes = 64 << 10;
// Reading takes this much more than a frame needs: the next frames' headers,
// and small frames whole.
constexpr size_t kReadAheadBytes = 16 << 10;
// Pieces of memory that one write takes.
constexpr int kGatherParts = 16;
// Frames start at multiples of this, so that no element is cut.
constexpr size_t kFrameAlignment = 64;

size_t RoundUp(size_t value, size_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

// Whether the frame lies in what `operation` waits for; sums must not wrap.
bool Fits(const FrameHeader& header, const ReceiveOperation& operation) {
  return header.offset <= operation.nbytes &&
         header.nbytes <= operation.nbytes - header.offset;
}

Status DescribeMisfit(const FrameHeader& header,
                      const ReceiveOperation& operation) {
  return Status(StatusCode::kInternal,
                StrCat(header.nbytes, " bytes at ", header.offset,
                       " came where a message of ", operation.nbytes,
                       " bytes was expected"));
}

}  // namespace

// A frame on its way out. `owned` holds the header and, for small frames, the
// payload; the rest of the payload follows from `data`.
struct Pair::Outgoing {
  uint64_t key = 0;
  std::vector<char> owned;
  const char* data = nullptr;
  size_t data_nbytes = 0;
  size_t position = 0;
  SendOperation* operation = nullptr;

  size_t nbytes() const { return owned.size() + data_nbytes; }
  // Adds what is left to be sent, at most two parts; how many.
  int AddParts(iovec* parts) {
    int count = 0;
    if (position < owned.size()) {
      parts[count++] = {owned.data() + position, owned.size() - position};
    }
    if (data_nbytes > 0) {
      const size_t sent = position - std::min(position, owned.size());
      parts[count++] = {const_cast<char*>(data) + sent, data_nbytes - sent};
    }
    return count;
  }
};

// A frame on its way in.
struct Pair::Incoming {
  FrameHeader header;
  size_t header_position = 0;
  size_t position = 0;  // In the payload.
  ReceiveOperation* operation = nullptr;
  bool discard = false;      // Its operation was cancelled.
  std::vector<char> buffer;  // Control payload, early data, or scratch.
};

struct Pair::Channel {
  std::unique_ptr<Stream> stream;
  std::deque<Outgoing> outgoing;
  Incoming incoming;
  // Bytes [ahead_begin, ahead_end) have been read and not looked at.
  std::unique_ptr<char[]> ahead{new char[kReadAheadBytes]};
  size_t ahead_begin = 0;
  size_t ahead_end = 0;
  bool writable = true;
  bool ended = false;  // Nothing more to read.
};

Pair::Pair(std::vector<std::unique_ptr<Stream>> streams) {
  for (auto& stream : streams) {
    channels_.push_back(std::make_unique<Channel>());
    channels_.back()->stream = std::move(stream);
  }
}

Pair::~Pair() = default;

void Pair::SendControl(FrameType type, uint64_t key,
                       const std::string& payload) {
  FrameHeader header;
  header.type = type;
  header.key = key;
  header.nbytes = payload.size();
  Outgoing frame;
  frame.key = key;
  frame.owned.resize(sizeof(header) + payload.size());
  std::memcpy(frame.owned.data(), &header, sizeof(header));
  std::memcpy(frame.owned.data() + sizeof(header), payload.data(),
              payload.size());
  channels_[0]->outgoing.push_back(std::move(frame));
  PumpOut(*channels_[0]);
}

void Pair::Send(uint64_t key, uint32_t tag, const void* data, size_t nbytes,
                SendOperation* operation) {
  if (nbytes == 0) return;
  const size_t share = RoundUp(
      (nbytes + channels_.size() - 1) / channels_.size(), kFrameAlignment);
  const size_t frame_nbytes =
      std::clamp(share, kMinFrameBytes, kMaxDataFrameBytes);
  // Messages of one frame must not all go by the first.
  size_t next_channel = tag;
  for (size_t offset = 0; offset < nbytes; offset += frame_nbytes) {
    FrameHeader header;
    header.key = key;
    header.tag = tag;
    header.offset = offset;
    header.nbytes = std::min(frame_nbytes, nbytes - offset);
    const char* payload = static_cast<const char*>(data) + offset;
    Outgoing frame;
    frame.key = key;
    frame.operation = operation;
    const bool coalesce = header.nbytes <= kCoalesceBytes;
    frame.owned.resize(sizeof(header) + (coalesce ? header.nbytes : 0));
    std::memcpy(frame.owned.data(), &header, sizeof(header));
    if (coalesce) {
      std::memcpy(frame.owned.data() + sizeof(header), payload, header.nbytes);
    } else {
      frame.data = payload;
      frame.data_nbytes = header.nbytes;
    }
    ++operation->frames_left;
    Channel& channel = *channels_[next_channel++ % channels_.size()];
    channel.outgoing.push_back(std::move(frame));
    PumpOut(channel);
  }
}

void Pair::Receive(uint64_t key, uint32_t tag, ReceiveOperation* operation) {
  if (operation->done()) return;
  const MessageId id{key, tag};
  posted_[id] = operation;
  auto early = early_.find(id);
  if (early == early_.end()) return;
  std::vector<Early> frames = std::move(early->second);
  early_.erase(early);
  for (Early& frame : frames) {
    Incoming incoming;
    incoming.header.key = key;
    incoming.header.tag = tag;
    incoming.header.offset = frame.offset;
    incoming.header.nbytes = frame.data.size();
    incoming.buffer = std::move(frame.data);
    FinishFrame(incoming);
  }
}

void Pair::Cancel(uint64_t key) {
  cancelled_.insert(key);
  for (auto posted = posted_.begin(); posted != posted_.end();) {
    posted = posted->first.key == key ? posted_.erase(posted) : ++posted;
  }
  for (auto early = early_.begin(); early != early_.end();) {
    early = early->first.key == key ? early_.erase(early) : ++early;
  }
  for (auto& channel : channels_) {
    Incoming& incoming = channel->incoming;
    const bool in_payload = incoming.header_position == sizeof(FrameHeader);
    if (in_payload && incoming.header.type == FrameType::kData &&
        incoming.header.key == key) {
      incoming.operation = nullptr;
      incoming.discard = true;
    }
    for (auto frame = channel->outgoing.begin();
         frame != channel->outgoing.end();) {
      if (frame->key != key || frame->operation == nullptr) {
        ++frame;
      } else if (frame->position == 0) {
        frame = channel->outgoing.erase(frame);
      } else {
        // The peer counts on the rest of a frame that has begun.
        frame->owned.insert(frame->owned.end(), frame->data,
                            frame->data + frame->data_nbytes);
        frame->data_nbytes = 0;
        frame->operation = nullptr;
        ++frame;
      }
    }
  }
}

bool Pair::Serves(uint64_t key) const {
  for (const auto& [id, operation] : posted_) {
    if (id.key == key) return true;
  }
  for (const auto& channel : channels_) {
    for (const Outgoing& frame : channel->outgoing) {
      if (frame.key == key && frame.operation != nullptr) return true;
    }
  }
  return false;
}

bool Pair::Pump() {
  bool moved = false;
  for (auto& channel : channels_) {
    if (closed_) return moved;
    moved |= PumpOut(*channel);
    moved |= PumpIn(*channel);
  }
  return moved;
}

bool Pair::PumpOut(Channel& channel) {
  bool moved = false;
  while (!closed_ && channel.writable && !channel.outgoing.empty()) {
    iovec parts[kGatherParts];
    int part_count = 0;
    for (Outgoing& frame : channel.outgoing) {
      if (part_count + 2 > kGatherParts) break;
      part_count += frame.AddParts(parts + part_count);
    }
    const ssize_t count = channel.stream->TryGather(parts, part_count);
    if (count == Stream::kClosed) {
      // What the peer sent before it went is still to be read.
      channel.writable = false;
      return moved;
    }
    if (count == 0) return moved;
    moved = true;
    for (size_t left = count; left > 0;) {
      Outgoing& frame = channel.outgoing.front();
      const size_t step = std::min(left, frame.nbytes() - frame.position);
      frame.position += step;
      left -= step;
      if (frame.position < frame.nbytes()) break;
      if (frame.operation != nullptr) --frame.operation->frames_left;
      channel.outgoing.pop_front();
    }
  }
  return moved;
}

bool Pair::PumpIn(Channel& channel) {
  // One peer's flood must not keep the others from their turn.
  constexpr int kMaxReads = 64;
  bool moved = false;
  for (int i = 0; i < kMaxReads && !closed_ && !channel.ended; ++i) {
    const bool reading_header =
        channel.incoming.header_position < sizeof(FrameHeader);
    if (!(reading_header ? ReadHeader(channel) : ReadPayload(channel))) break;
    moved = true;
  }
  return moved;
}

// As Stream::TryRead, but with what has been read ahead first.
ssize_t Pair::Read(Channel& channel, char* into, size_t nbytes) {
  if (channel.ahead_begin == channel.ahead_end) {
    const iovec parts[] = {{into, nbytes},
                           {channel.ahead.get(), kReadAheadBytes}};
    const ssize_t count = channel.stream->TryScatter(parts, 2);
    if (count == Stream::kClosed) End(channel);
    if (count <= static_cast<ssize_t>(nbytes)) return count;
    channel.ahead_begin = 0;
    channel.ahead_end = count - nbytes;
    return static_cast<ssize_t>(nbytes);
  }
  const size_t count =
      std::min(nbytes, channel.ahead_end - channel.ahead_begin);
  std::memcpy(into, channel.ahead.get() + channel.ahead_begin, count);
  channel.ahead_begin += count;
  return static_cast<ssize_t>(count);
}

bool Pair::ReadHeader(Channel& channel) {
  Incoming& incoming = channel.incoming;
  const ssize_t count =
      Read(channel,
           reinterpret_cast<char*>(&incoming.header) + incoming.header_position,
           sizeof(FrameHeader) - incoming.header_position);
  if (count <= 0) return false;
  incoming.header_position += count;
  if (incoming.header_position < sizeof(FrameHeader)) return true;

  const FrameHeader& header = incoming.header;
  const bool data = header.type == FrameType::kData;
  const size_t bound = data ? kMaxDataFrameBytes : kMaxControlBytes;
  if (header.magic != FrameHeader::kMagic || header.nbytes > bound) {
    Fail(Status(
        StatusCode::kInternal,
        StrCat("a frame is malformed: magic ", header.magic, ", type ",
               static_cast<int>(header.type), ", ", header.nbytes, " bytes")));
    return false;
  }
  if (data) {
    auto posted = posted_.find({header.key, header.tag});
    if (posted != posted_.end()) incoming.operation = posted->second;
    incoming.discard =
        incoming.operation == nullptr && cancelled_.count(header.key) > 0;
  }
  if (incoming.operation == nullptr) {
    if (!incoming.discard) incoming.buffer.resize(header.nbytes);
  } else if (!Fits(header, *incoming.operation)) {
    Fail(DescribeMisfit(header, *incoming.operation));
    return false;
  } else if (incoming.operation->combine != nullptr) {
    incoming.buffer.resize(std::min<size_t>(header.nbytes, kScratchBytes));
  }
  if (header.nbytes == 0) FinishFrame(incoming);
  return true;
}

bool Pair::ReadPayload(Channel& channel) {
  Incoming& incoming = channel.incoming;
  ReceiveOperation* operation = incoming.operation;
  const size_t left = incoming.header.nbytes - incoming.position;
  char* into = nullptr;
  size_t want = left;
  size_t scratch_position = 0;
  if (incoming.discard) {
    incoming.buffer.resize(kScratchBytes);
    into = incoming.buffer.data();
    want = std::min(left, kScratchBytes);
  } else if (operation == nullptr) {
    into = incoming.buffer.data() + incoming.position;
  } else if (operation->combine == nullptr) {
    into = operation->target + incoming.header.offset + incoming.position;
  } else {
    // Whole scratch buffers are combined; `position` tells how full it is.
    scratch_position = incoming.position % incoming.buffer.size();
    into = incoming.buffer.data() + scratch_position;
    want = std::min(left, incoming.buffer.size() - scratch_position);
  }
  const ssize_t count = Read(channel, into, want);
  if (count <= 0) return false;
  incoming.position += count;
  const bool finished = incoming.position == incoming.header.nbytes;
  if (!incoming.discard && operation != nullptr &&
      operation->combine != nullptr) {
    const size_t filled = scratch_position + count;
    if (finished || filled == incoming.buffer.size()) {
      char* target = operation->target + incoming.header.offset +
                     incoming.position - filled;
      operation->combine(target, target, incoming.buffer.data(),
                         filled / operation->element_nbytes);
    }
  }
  if (finished) FinishFrame(incoming);
  return true;
}

// The payload is complete: in the operation's memory already, or in `buffer`.
void Pair::FinishFrame(Incoming& incoming) {
  const FrameHeader header = incoming.header;
  const MessageId id{header.key, header.tag};
  ReceiveOperation* operation = incoming.operation;
  const bool discard = incoming.discard;
  std::vector<char> buffer = std::move(incoming.buffer);
  incoming = Incoming();
  if (discard) return;
  if (header.type != FrameType::kData) {
    control_handler_(header.type, header.key,
                     std::string(buffer.begin(), buffer.end()));
    return;
  }
  if (operation == nullptr) {
    auto posted = posted_.find(id);
    if (posted == posted_.end()) {
      early_[id].push_back({header.offset, std::move(buffer)});
      return;
    }
    operation = posted->second;
    if (!Fits(header, *operation)) {
      Fail(DescribeMisfit(header, *operation));
      return;
    }
    char* target = operation->target + header.offset;
    if (operation->combine != nullptr) {
      operation->combine(target, target, buffer.data(),
                         buffer.size() / operation->element_nbytes);
    } else if (!buffer.empty()) {
      std::memcpy(target, buffer.data(), buffer.size());
    }
  }
  operation->received += header.nbytes;
  if (operation->done()) posted_.erase(id);
}

bool Pair::flushed() const {
  for (const auto& channel : channels_) {
    const bool live = !closed_ && channel->writable;
    if (!live) continue;
    if (!channel->outgoing.empty() || !channel->stream->delivered()) {
      return false;
    }
  }
  return true;
}

void Pair::CloseForWriting() {
  for (auto& channel : channels_) channel->stream->CloseForWriting();
}

void Pair::End(Channel& channel) {
  channel.ended = true;
  ++ended_count_;
  if (failure_.ok()) failure_ = channel.stream->end();
  const bool unreachable = failure_.code() == StatusCode::kDeadlineExceeded;
  if (ended_count_ == channels_.size() || unreachable) Fail(failure_);
}

void Pair::CheckPeer() {
  for (auto& channel : channels_) {
    if (closed_) return;
    channel->stream->CheckPeer();
    if (!channel->ended && !channel->stream->end().ok()) End(*channel);
  }
}

std::pair<std::string, std::string> Pair::addresses() const {
  return channels_[0]->stream->addresses();
}

void Pair::Fail(const Status& why) {
  closed_ = true;
  failure_ = why;
}

}  // namespace ring_keras
