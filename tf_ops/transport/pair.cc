#include "tf_ops/transport/pair.h"

#include <algorithm>
#include <cstring>
#include <variant>

#include "tf_ops/transport/direct_payloads.h"
#include "tf_ops/transport/outgoing_frames.h"
#include "tf_ops/transport/read_ahead.h"

namespace ring_keras {
namespace {

// A message is not cut into frames smaller than this.
constexpr size_t kMinFrameBytes = 128 << 10;
// Frames start at multiples of this, so that no element is cut.
constexpr size_t kFrameAlignment = 64;

size_t RoundUp(size_t value, size_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

Status Misfit(uint64_t offset, uint64_t nbytes,
              const ReceiveOperation& operation) {
  return Status(
      StatusCode::kInternal,
      StrCat(nbytes, " bytes at ", offset, " came where a message of ",
             operation.nbytes, " bytes was expected"));
}

Status Malformed(const FrameHeader& header) {
  return Status(
      StatusCode::kInternal,
      StrCat("a frame is malformed: magic ", header.magic, ", type ",
             static_cast<int>(header.type), ", ", header.nbytes, " bytes"));
}

}  // namespace

// One stream, and what is under way on it.
struct Pair::Connection {
  std::unique_ptr<Stream> stream;
  OutgoingFrames outgoing;
  ReadAhead input;
  // The frame on its way in: first its header, then its payload.
  FrameHeader header;
  size_t header_nbytes = 0;  // Of it, so far.
  PayloadSink sink;
  DirectPayloads direct;
  bool ended = false;  // Nothing more to read.

  bool in_payload() const { return header_nbytes == sizeof(header); }
  MessageId message() const { return {header.key, header.tag}; }
  // Whether its payload goes around the flow.
  bool is_direct(const FrameHeader& of) const {
    return of.type == FrameType::kData && stream != nullptr &&
           of.nbytes >= stream->direct_nbytes();
  }
};

Pair::Pair(std::vector<std::unique_ptr<Stream>> streams,
           size_t max_early_nbytes)
    : stream_count_(static_cast<int>(streams.size())),
      max_early_nbytes_(max_early_nbytes) {
  Connect(std::move(streams));
}

Pair::Pair(int stream_count, std::function<void()> need)
    : stream_count_(stream_count),
      need_(std::move(need)),
      max_early_nbytes_(kMaxEarlyBytes) {}

Pair::~Pair() = default;

void Pair::Need() {
  if (!connections_.empty()) return;
  for (int i = 0; i < stream_count_; ++i) {
    connections_.push_back(std::make_unique<Connection>());
    OutgoingFrames& outgoing = connections_.back()->outgoing;
    outgoing.CountUnsentIn(unsent_);
    if (stopped_sending_) outgoing.Break();
  }
  if (!connected_ && !stopped_sending_) need_();
}

void Pair::Connect(std::vector<std::unique_ptr<Stream>> streams) {
  connected_ = true;
  // The peer may have been the first to need it.
  Need();
  for (size_t i = 0; i < streams.size(); ++i) {
    connections_[i]->stream = std::move(streams[i]);
  }
}

void Pair::FailToConnect(const Status& why,
                         std::pair<std::string, std::string> addresses) {
  tried_ = std::move(addresses);
  Fail(why);
}

void Pair::CountUnsentIn(std::atomic<int>* unsent) {
  unsent_ = unsent;
  for (auto& connection : connections_)
    connection->outgoing.CountUnsentIn(unsent);
}

void Pair::Write(Connection& connection) {
  if (closed_ || !connected_) return;
  moves_ += connection.outgoing.WriteTo(*connection.stream);
}

void Pair::SendControl(FrameType type, uint64_t key,
                       const std::string& payload) {
  QueueControl(type, key, payload);
  Write(*connections_[0]);
}

void Pair::QueueControl(FrameType type, uint64_t key,
                        const std::string& payload) {
  Need();
  connections_[0]->outgoing.PushControl(type, key, payload);
}

void Pair::Send(uint64_t key, uint32_t tag, const void* data, size_t nbytes,
                SendOperation* operation) {
  if (nbytes == 0) return;
  Need();
  const size_t share =
      RoundUp((nbytes + connections_.size() - 1) / connections_.size(),
              kFrameAlignment);
  const size_t frame_nbytes =
      std::clamp(share, kMinFrameBytes, kMaxDataFrameBytes);
  // Messages of one frame must not all go by the first.
  size_t next = tag;
  for (size_t offset = 0; offset < nbytes; offset += frame_nbytes) {
    FrameHeader header;
    header.key = key;
    header.tag = tag;
    header.offset = offset;
    header.nbytes = std::min(frame_nbytes, nbytes - offset);
    Connection& connection = *connections_[next++ % connections_.size()];
    connection.outgoing.PushData(
        header, static_cast<const char*>(data) + offset, operation);
    // The headers of several direct payloads go together, in Pump().
    if (!connection.is_direct(header)) Write(connection);
  }
}

void Pair::Receive(uint64_t key, uint32_t tag, ReceiveOperation* operation) {
  if (operation->done()) return;
  Need();
  const MessageId id{key, tag};
  posted_[id] = operation;
  if (early_.nbytes() == 0) return;
  for (const EarlyData::Piece& piece : early_.Take(id)) {
    if (!Deliver(*operation, id, piece.offset, piece.bytes)) return;
  }
}

void Pair::Cancel(uint64_t key) {
  cancelled_.insert(key);
  for (auto posted = posted_.begin(); posted != posted_.end();) {
    posted = posted->first.key == key ? posted_.erase(posted) : ++posted;
  }
  early_.Cancel(key);
  for (auto& connection : connections_) {
    const FrameHeader& header = connection->header;
    if (connection->in_payload() && header.type == FrameType::kData &&
        header.key == key) {
      connection->sink.DiscardTheRest();
    }
    connection->direct.Cancel(key);
    connection->outgoing.Cancel(key);
  }
}

bool Pair::Holds(uint64_t key) {
  const bool gone = peer_gone_ && Clock::now() - *peer_gone_ > kLastBytes;
  bool sends = false;
  bool receives = false;
  for (auto& connection : connections_) {
    if (connection->stream == nullptr) continue;
    connection->outgoing.EndDirect(*connection->stream);
    EndDirect(*connection);
    // Who has closed its end takes nothing more.
    sends |= connection->stream->end().ok() && connection->outgoing.Holds(key);
    receives |= connection->direct.Holds(key);
  }
  if (gone && peer_process_ended_) return false;
  // Of a pair that is closed nobody reads the end.
  return receives || (sends && !(gone && closed_));
}

bool Pair::Serves(uint64_t key) const {
  for (const auto& [id, operation] : posted_) {
    if (id.key == key) return true;
  }
  return std::any_of(
      connections_.begin(), connections_.end(),
      [&](const auto& connection) { return connection->outgoing.Serves(key); });
}

bool Pair::Pump() {
  if (!connected_) return false;
  bool moved = false;
  for (auto& connection : connections_) {
    if (closed_) break;
    moved |= connection->outgoing.WriteTo(*connection->stream);
    moved |= ReadFrom(*connection);
  }
  moves_ += moved;
  return moved;
}

void Pair::WriteQueued() {
  for (auto& connection : connections_) Write(*connection);
}

bool Pair::ReadFrom(Connection& connection) {
  // One peer's flood must not keep the others from their turn.
  constexpr int kMaxReads = 64;
  bool moved = EndDirect(connection);
  for (int i = 0; i < kMaxReads && !closed_ && !connection.ended; ++i) {
    const bool read = connection.in_payload() ? ReadPayload(connection)
                                              : ReadHeader(connection);
    if (!read) break;
    moved = true;
  }
  return moved;
}

ssize_t Pair::Read(Connection& connection, char* into, size_t nbytes) {
  const ssize_t count = connection.input.Read(*connection.stream, into, nbytes);
  if (count == Stream::kClosed) End(connection);
  return count;
}

bool Pair::ReadHeader(Connection& connection) {
  const ssize_t count = Read(
      connection,
      reinterpret_cast<char*>(&connection.header) + connection.header_nbytes,
      sizeof(FrameHeader) - connection.header_nbytes);
  if (count <= 0) return false;
  connection.header_nbytes += count;
  if (!connection.in_payload()) return true;
  if (!BeginPayload(connection)) return false;
  if (connection.in_payload() && connection.sink.complete()) {
    FinishPayload(connection);
  }
  return true;
}

bool Pair::BeginPayload(Connection& connection) {
  const FrameHeader& header = connection.header;
  const bool data = header.type == FrameType::kData;
  const size_t relay_nbytes =
      header.type == FrameType::kRelayed ? kRelayBytes : 0;
  const size_t bound =
      data ? kMaxDataFrameBytes : kMaxControlBytes + relay_nbytes;
  if (header.magic != FrameHeader::kMagic || header.nbytes > bound ||
      (data && header.nbytes == 0)) {
    Fail(Malformed(header));
    return false;
  }
  PayloadSink::Destination destination = PayloadSink::Collect();
  const auto posted = data ? posted_.find(connection.message()) : posted_.end();
  if (posted != posted_.end()) {
    ReceiveOperation* operation = posted->second;
    if (!Claim(*operation, header.offset, header.nbytes)) return false;
    if (operation->combine == nullptr) {
      destination = PayloadSink::Fill{operation};
    } else {
      destination = PayloadSink::Combine{operation};
    }
  } else if (data && cancelled_.count(header.key) > 0) {
    destination = PayloadSink::Discard();
  } else if (data && EarlyBytes() + header.nbytes > max_early_nbytes_) {
    overflow_key_ = header.key;
    Fail(Status(StatusCode::kResourceExhausted,
                StrCat("one sent more than ", max_early_nbytes_,
                       " bytes that the other was not ready for")));
    return false;
  }
  if (connection.is_direct(header)) {
    connection.direct.Begin(header, std::move(destination), *connection.stream);
    connection.header_nbytes = 0;
  } else {
    connection.sink.Begin(header, std::move(destination));
  }
  return true;
}

size_t Pair::EarlyBytes() const {
  size_t nbytes = early_.nbytes();
  for (const auto& connection : connections_) {
    nbytes += connection->direct.early_nbytes();
  }
  return nbytes;
}

bool Pair::ReadPayload(Connection& connection) {
  const auto [into, nbytes] = connection.sink.Next();
  const ssize_t count = Read(connection, into, nbytes);
  if (count <= 0) return false;
  connection.sink.Took(static_cast<size_t>(count));
  if (connection.sink.complete()) FinishPayload(connection);
  return true;
}

bool Pair::EndDirect(Connection& connection) {
  bool ended = false;
  while (auto payload = connection.direct.End(*connection.stream)) {
    ended = true;
    // One that failed is not whole.
    if (closed_ || !connection.stream->end().ok()) continue;
    FinishFrame(payload->header, std::move(payload->destination));
  }
  return ended;
}

void Pair::FinishPayload(Connection& connection) {
  const FrameHeader header = connection.header;
  PayloadSink::Destination taken = connection.sink.Finish();
  connection.header_nbytes = 0;
  FinishFrame(header, std::move(taken));
}

void Pair::FinishFrame(const FrameHeader& header,
                       PayloadSink::Destination taken) {
  const MessageId id{header.key, header.tag};
  if (const auto* fill = std::get_if<PayloadSink::Fill>(&taken)) {
    Count(*fill->operation, id, header.nbytes);
  } else if (const auto* combine = std::get_if<PayloadSink::Combine>(&taken)) {
    Count(*combine->operation, id, header.nbytes);
  } else if (auto* collect = std::get_if<PayloadSink::Collect>(&taken)) {
    if (header.type != FrameType::kData) {
      control_handler_(header.type, header.key, std::move(collect->bytes));
      return;
    }
    // Its receive may have been posted meanwhile.
    const auto posted = posted_.find(id);
    if (posted == posted_.end()) {
      early_.Add(id, header.offset, std::move(collect->bytes));
    } else {
      Deliver(*posted->second, id, header.offset, collect->bytes);
    }
  }
}

bool Pair::Claim(ReceiveOperation& operation, uint64_t offset,
                 uint64_t nbytes) {
  // Sums must not wrap. Elements stay whole: `element_nbytes` is 1 where the
  // bytes are not combined.
  const bool fits = offset <= operation.nbytes &&
                    nbytes <= operation.nbytes - offset &&
                    nbytes <= operation.nbytes - operation.claimed &&
                    offset % operation.element_nbytes == 0 &&
                    nbytes % operation.element_nbytes == 0;
  if (fits) {
    operation.claimed += nbytes;
  } else {
    Fail(Misfit(offset, nbytes, operation));
  }
  return fits;
}

bool Pair::Deliver(ReceiveOperation& operation, const MessageId& id,
                   uint64_t offset, const std::string& bytes) {
  if (!Claim(operation, offset, bytes.size())) return false;
  char* target = operation.target + offset;
  if (operation.combine != nullptr) {
    operation.combine(target, target, bytes.data(),
                      bytes.size() / operation.element_nbytes);
  } else if (!bytes.empty()) {
    std::memcpy(target, bytes.data(), bytes.size());
  }
  Count(operation, id, bytes.size());
  return true;
}

void Pair::Count(ReceiveOperation& operation, const MessageId& id,
                 size_t nbytes) {
  operation.received += nbytes;
  if (operation.done()) posted_.erase(id);
}

bool Pair::moves_directly() const {
  return std::any_of(connections_.begin(), connections_.end(),
                     [](const auto& connection) {
                       return connection->outgoing.moves_directly() ||
                              !connection->direct.empty();
                     });
}

bool Pair::flushed() const {
  return closed_ || std::all_of(connections_.begin(), connections_.end(),
                                [](const auto& connection) {
                                  return connection->outgoing.broken() ||
                                         (connection->outgoing.empty() &&
                                          (connection->stream == nullptr ||
                                           connection->stream->delivered()));
                                });
}

void Pair::StopSending() {
  stopped_sending_ = true;
  for (auto& connection : connections_) connection->outgoing.Break();
}

void Pair::OnPeerGone(bool process_ended) {
  if (!peer_gone_) peer_gone_ = Clock::now();
  peer_process_ended_ |= process_ended;
}

void Pair::CloseForWriting() {
  if (!connected_) return;
  for (auto& connection : connections_) connection->stream->CloseForWriting();
}

void Pair::End(Connection& connection) {
  connection.ended = true;
  ++ended_count_;
  if (failure_.ok()) failure_ = connection.stream->end();
  if (ended_count_ == connections_.size() || failed_by_network()) {
    Fail(failure_);
  }
}

void Pair::CheckPeer() {
  if (!connected_) return;
  for (auto& connection : connections_) {
    if (closed_) return;
    connection->stream->CheckPeer();
    if (!connection->ended && !connection->stream->end().ok()) {
      End(*connection);
    }
  }
}

std::pair<std::string, std::string> Pair::addresses() const {
  if (!connected_) return tried_;
  return connections_[0]->stream->addresses();
}

SentTraffic Pair::sent() const {
  SentTraffic all;
  if (!connected_) return all;
  for (const auto& connection : connections_) {
    const SentTraffic one = connection->stream->sent();
    all.acknowledged_nbytes += one.acknowledged_nbytes;
    all.busy_s = std::max(all.busy_s, one.busy_s);
  }
  return all;
}

void Pair::Fail(const Status& why) {
  closed_ = true;
  failure_ = why;
  StopSending();
}

}  // namespace ring_keras
