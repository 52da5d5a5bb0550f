#include "tf_ops/rendezvous/store_protocol.h"

#include <string>

#include "tests/cpp/support/test.h"
#include "tf_ops/rendezvous/limits.h"
#include "tf_ops/rendezvous/wire.h"

namespace ring_keras::rendezvous {
namespace {

Frame SampleFrame() {
  Frame frame;
  frame.type = FrameType::kGather;
  frame.request_id = 0x1122334455667788;
  frame.number = -2;
  frame.name = "topic";
  frame.payload = std::string("va\0lue", 6);
  return frame;
}

// The fixed fields of a frame that claims these lengths.
std::string Claim(uint32_t length, uint8_t type, uint32_t name_length) {
  std::string bytes;
  AppendInteger(bytes, length);
  AppendInteger(bytes, type);
  AppendInteger(bytes, uint64_t{0});
  AppendInteger(bytes, int64_t{0});
  AppendInteger(bytes, name_length);
  return bytes;
}

RING_TEST(FramesSurviveAnyCut) {
  const std::string bytes = Encode(SampleFrame()) + Encode(SampleFrame());
  for (size_t cut = 0; cut <= bytes.size(); ++cut) {
    FrameReader reader;
    Frame frame;
    int count = 0;
    for (const std::string& part : {bytes.substr(0, cut), bytes.substr(cut)}) {
      reader.Append(part);
      while (true) {
        StatusOr<bool> whole = reader.Next(&frame);
        ASSERT_OK(whole.status());
        if (!whole.value()) break;
        ++count;
        EXPECT_EQ(frame.type, FrameType::kGather);
        EXPECT_EQ(frame.request_id, SampleFrame().request_id);
        EXPECT_EQ(frame.number, -2);
        EXPECT_EQ(frame.name, "topic");
        EXPECT_EQ(frame.payload, SampleFrame().payload);
      }
    }
    EXPECT_EQ(count, 2) << "cut at " << cut;
  }
}

RING_TEST(RefusesAFrameByItsLengthAlone) {
  for (uint32_t length : {uint32_t{0}, uint32_t{kFrameHeaderBytes - 1},
                          uint32_t{kMaxFrameBytes + 1}, uint32_t{0xffffffff}}) {
    FrameReader reader;
    reader.Append(Claim(length, 7, 0).substr(0, 4));
    Frame frame;
    EXPECT_EQ(reader.Next(&frame).status().code(), StatusCode::kInvalidArgument)
        << length;
  }
}

RING_TEST(RefusesAFrameByItsFixedFields) {
  const uint32_t length = 1000;
  for (const std::string& bytes :
       {Claim(length, 0, 0), Claim(length, 2, 0), Claim(length, 3, 0),
        Claim(length, 8, 0), Claim(length, 67, 0),
        Claim(length, 7, kMaxNameBytes + 1), Claim(length, 7, 0xffffffff),
        Claim(kFrameHeaderBytes + 2, 7, 3)}) {
    FrameReader reader;
    reader.Append(bytes);
    Frame frame;
    EXPECT_EQ(reader.Next(&frame).status().code(),
              StatusCode::kInvalidArgument);
  }
}

RING_TEST(LargestTopicAndValueFit) {
  Frame frame = SampleFrame();
  frame.name = std::string(kMaxNameBytes, 't');
  frame.payload = std::string(kMaxValueBytes, 'v');
  EXPECT_OK(CheckTopic(frame.name));
  EXPECT_OK(CheckValue(frame.name, frame.payload));
  FrameReader reader;
  reader.Append(Encode(frame));
  Frame got;
  StatusOr<bool> whole = reader.Next(&got);
  ASSERT_OK(whole.status());
  EXPECT_TRUE(whole.value());
  EXPECT_TRUE(got.payload == frame.payload);
}

RING_TEST(AnswersCarryErrors) {
  for (StatusCode code : {StatusCode::kPeerLost, StatusCode::kInvalidArgument,
                          StatusCode::kResourceExhausted}) {
    FrameReader reader;
    reader.Append(EncodeError(5, Status(code, "why")));
    Frame frame;
    ASSERT_OK(reader.Next(&frame).status());
    EXPECT_EQ(frame.request_id, 5);
    EXPECT_EQ(ErrorOf(frame).code(), code);
    EXPECT_EQ(ErrorOf(frame).message(), "why");
  }
}

RING_TEST(EventsKeepTheirKind) {
  using Kind = RankEvent::Kind;
  for (const auto& [kind, ended] :
       {std::pair(Kind::kLost, false), std::pair(Kind::kLost, true),
        std::pair(Kind::kLeft, false)}) {
    FrameReader reader;
    reader.Append(EncodeEvent({kind, 3, "rank 3 did it", ended}));
    Frame frame;
    ASSERT_OK(reader.Next(&frame).status());
    const RankEvent event = EventOf(frame);
    EXPECT_EQ(event.kind, kind);
    EXPECT_EQ(event.process_ended, ended);
    EXPECT_EQ(event.rank, 3);
    EXPECT_EQ(event.description, "rank 3 did it");
  }
}

}  // namespace
}  // namespace ring_keras::rendezvous
