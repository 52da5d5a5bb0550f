// What ranks tell each other when a communicator has broken.
#include "tf_ops/transport/status_wire.h"

#include "tests/cpp/support/test.h"

namespace ring_keras {
namespace {

RING_TEST(AnErrorComesBackAsItWas) {
  const Status sent(StatusCode::kPeerLost, std::string("rank 3\0 died", 12));
  const Status got = DecodeStatus(Encode(sent));
  EXPECT_EQ(got.code(), sent.code());
  EXPECT_EQ(got.message(), sent.message());
}

RING_TEST(ItsCodeTravelsToo) {
  const Status sent(StatusCode::kPeerLost, ErrorCode::kLinkBroken, "why");
  EXPECT_EQ(sent.CodedMessage(), "[RK204] why");
  const Status got = DecodeStatus(Encode(sent));
  EXPECT_TRUE(got.error_code() == ErrorCode::kLinkBroken);
  EXPECT_EQ(got.message(), "why");
}

// What looks like a code, and is none, is part of the message.
RING_TEST(WhatIsNoCodeStaysInTheMessage) {
  const std::string lost(1, static_cast<char>(StatusCode::kPeerLost));
  for (const std::string& message :
       {std::string("[RK12] x"), std::string("[RK0a1] x"),
        std::string("[RK099] x"), std::string("[RK201]x"),
        std::string("[RK201")}) {
    const Status got = DecodeStatus(lost + message);
    EXPECT_EQ(got.message(), message);
    EXPECT_TRUE(got.error_code() == ErrorCode::kRankLost);
  }
}

// A communicator that broke for no reason would wait for ever.
RING_TEST(WhatIsNoErrorIsOneAllTheSame) {
  for (const std::string& bytes :
       {std::string(), std::string("\0fine", 5), std::string("\x7fwhat"),
        std::string("\xffwhat")}) {
    EXPECT_EQ(DecodeStatus(bytes).code(), StatusCode::kInternal) << bytes;
  }
}

}  // namespace
}  // namespace ring_keras
