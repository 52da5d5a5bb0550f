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
