#include "tf_ops/rendezvous/store_protocol.h"

#include "tf_ops/rendezvous/limits.h"
#include "tf_ops/rendezvous/wire.h"

namespace ring_keras::rendezvous {
namespace {

constexpr size_t kLengthBytes = 4;

Status BrokenFrame(const std::string& what) {
  return Status(StatusCode::kInvalidArgument,
                "it broke the store's protocol: " + what);
}

bool IsFrameType(uint8_t number) {
  switch (static_cast<FrameType>(number)) {
    case FrameType::kHello:
    case FrameType::kCancel:
    case FrameType::kPing:
    case FrameType::kLeave:
    case FrameType::kGather:
    case FrameType::kWelcome:
    case FrameType::kAnswer:
    case FrameType::kEvent:
      return true;
  }
  return false;
}

// All of a frame but its payload, of which `nbytes` follow.
std::string EncodeHeader(const Frame& frame, size_t nbytes) {
  std::string bytes;
  AppendInteger(bytes, static_cast<uint32_t>(kFrameHeaderBytes +
                                             frame.name.size() + nbytes));
  AppendInteger(bytes, static_cast<uint8_t>(frame.type));
  AppendInteger(bytes, frame.request_id);
  AppendInteger(bytes, frame.number);
  AppendInteger(bytes, static_cast<uint32_t>(frame.name.size()));
  return bytes + frame.name;
}

AnswerCode AnswerCodeOf(StatusCode code) {
  switch (code) {
    case StatusCode::kPeerLost:
      return AnswerCode::kPeerLost;
    case StatusCode::kResourceExhausted:
      return AnswerCode::kResourceExhausted;
    default:
      return AnswerCode::kInvalidArgument;
  }
}

}  // namespace

std::string Encode(const Frame& frame) {
  return EncodeHeader(frame, frame.payload.size()) + frame.payload;
}

std::string EncodeAnswerHeader(uint64_t request_id, size_t nbytes) {
  Frame answer;
  answer.type = FrameType::kAnswer;
  answer.request_id = request_id;
  return EncodeHeader(answer, nbytes);
}

std::string EncodeIncomplete(uint64_t request_id,
                             const std::vector<int>& missing) {
  Frame answer;
  answer.type = FrameType::kAnswer;
  answer.request_id = request_id;
  answer.number = static_cast<int64_t>(AnswerCode::kIncomplete);
  for (int rank : missing) AppendInteger(answer.payload, int32_t{rank});
  return Encode(answer);
}

std::vector<int> MissingRanksOf(const Frame& answer) {
  std::vector<int> missing;
  if (static_cast<AnswerCode>(answer.number) != AnswerCode::kIncomplete) {
    return missing;
  }
  for (size_t at = 0; at + 4 <= answer.payload.size(); at += 4) {
    missing.push_back(IntegerAt<int32_t>(answer.payload, at));
  }
  return missing;
}

std::string EncodeError(uint64_t request_id, const Status& error) {
  Frame answer;
  answer.type = FrameType::kAnswer;
  answer.request_id = request_id;
  answer.number = static_cast<int64_t>(AnswerCodeOf(error.code()));
  answer.payload = error.message();
  return Encode(answer);
}

Status ErrorOf(const Frame& answer) {
  switch (static_cast<AnswerCode>(answer.number)) {
    case AnswerCode::kOk:
      return Status::Ok();
    case AnswerCode::kPeerLost:
      return Status(StatusCode::kPeerLost, answer.payload);
    case AnswerCode::kResourceExhausted:
      return Status(StatusCode::kResourceExhausted, answer.payload);
    case AnswerCode::kIncomplete:
      return Status(StatusCode::kDeadlineExceeded, "ranks are missing");
    case AnswerCode::kInvalidArgument:
      break;
  }
  return Status(StatusCode::kInvalidArgument, answer.payload);
}

std::string EncodeEvent(const RankEvent& event) {
  Frame frame;
  frame.type = FrameType::kEvent;
  frame.number = event.rank;
  frame.name = event.kind == RankEvent::Kind::kLeft ? "left"
               : event.process_ended                ? "ended"
                                                    : "lost";
  frame.payload = event.description;
  return Encode(frame);
}

RankEvent EventOf(const Frame& frame) {
  RankEvent event;
  event.kind =
      frame.name == "left" ? RankEvent::Kind::kLeft : RankEvent::Kind::kLost;
  event.rank = static_cast<int>(frame.number);
  event.description = frame.payload;
  event.process_ended = frame.name == "ended";
  return event;
}

Status CheckTopic(const std::string& topic) {
  if (!topic.empty() && topic.size() <= kMaxNameBytes) return Status::Ok();
  return Status(StatusCode::kInvalidArgument,
                StrCat("a topic of the store must have 1 to ", kMaxNameBytes,
                       " bytes, came ", topic.size()));
}

Status CheckValue(const std::string& topic, const std::string& value) {
  if (value.size() <= kMaxValueBytes) return Status::Ok();
  return Status(StatusCode::kInvalidArgument,
                StrCat("a value of the store may have ", kMaxValueBytes,
                       " bytes, '", topic, "' came with ", value.size()));
}

std::string Cut(const std::string& text) {
  return text.substr(0, kMaxTextBytes);
}

StatusOr<bool> FrameReader::Next(Frame* frame) {
  if (buffer_.size() < kLengthBytes) return false;
  const size_t length = IntegerAt<uint32_t>(buffer_, 0);
  if (length < kFrameHeaderBytes || length > max_frame_bytes_) {
    return BrokenFrame(StrCat("a frame must have ", kFrameHeaderBytes, " to ",
                              max_frame_bytes_, " bytes, came ", length));
  }
  // The fixed fields are checked as soon as they are there.
  if (buffer_.size() < kLengthBytes + kFrameHeaderBytes) return false;
  const auto type = IntegerAt<uint8_t>(buffer_, kLengthBytes);
  if (!IsFrameType(type)) {
    return BrokenFrame(StrCat("there is no frame of type ", int{type}));
  }
  const size_t name_length =
      IntegerAt<uint32_t>(buffer_, kLengthBytes + kFrameHeaderBytes - 4);
  if (name_length > kMaxNameBytes || name_length > length - kFrameHeaderBytes) {
    return BrokenFrame(
        StrCat("a name of ", name_length, " bytes in a frame of ", length));
  }
  if (buffer_.size() < kLengthBytes + length) return false;

  frame->type = static_cast<FrameType>(type);
  frame->request_id = IntegerAt<uint64_t>(buffer_, kLengthBytes + 1);
  frame->number = IntegerAt<int64_t>(buffer_, kLengthBytes + 9);
  const size_t name_at = kLengthBytes + kFrameHeaderBytes;
  frame->name = buffer_.substr(name_at, name_length);
  frame->payload = buffer_.substr(name_at + name_length,
                                  length - kFrameHeaderBytes - name_length);
  buffer_.erase(0, kLengthBytes + length);
  return true;
}

}  // namespace ring_keras::rendezvous
