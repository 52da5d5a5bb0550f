// When a peer counts as cut off, and when it does not.
#include "tf_ops/transport/tcp/tcp_stream.h"

#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "tests/cpp/support/test.h"
#include "tests/cpp/transport/transport_test_support.h"

namespace ring_keras {
namespace {

// It has no room, which its host says whenever it is asked.
RING_TEST(APeerThatDoesNotReadIsNotCutOff) {
  constexpr double kUnreachableAfterS = 0.2;
  auto poller = Poller::Create();
  ASSERT_OK(poller);
  auto [client, server] = ConnectedSockets();
  auto stream =
      TcpStream::Create(std::move(client), *poller.value(), kUnreachableAfterS);
  ASSERT_OK(stream);
  const std::string data(1 << 20, 'x');
  while (stream.value()->TryWrite(data.data(), data.size()) > 0) {
  }
  const Deadline watched = Deadline::After(5 * kUnreachableAfterS);
  while (!watched.Expired()) {
    stream.value()->CheckPeer();
    ASSERT_TRUE(stream.value()->end().ok()) << stream.value()->end().message();
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
}

RING_TEST(TheAddressesAreThoseOfBothEnds) {
  auto poller = Poller::Create();
  ASSERT_OK(poller);
  auto [client, server] = ConnectedSockets();
  const int client_port = LocalPort(client.get());
  const int server_port = LocalPort(server.get());
  auto stream = TcpStream::Create(std::move(client), *poller.value());
  ASSERT_OK(stream);
  const auto [own, peer] = stream.value()->addresses();
  EXPECT_EQ(own, StrCat("127.0.0.1:", client_port));
  EXPECT_EQ(peer, StrCat("127.0.0.1:", server_port));
}

RING_TEST(WhyAStreamEndedIsKept) {
  auto poller = Poller::Create();
  ASSERT_OK(poller);
  auto [client, server] = ConnectedSockets();
  auto stream = TcpStream::Create(std::move(client), *poller.value());
  ASSERT_OK(stream);
  EXPECT_TRUE(stream.value()->end().ok());
  server.Close();
  char byte = 0;
  const Deadline deadline = Soon();
  while (stream.value()->TryRead(&byte, 1) != Stream::kClosed &&
         !deadline.Expired()) {
    poller.value()->Collect();
  }
  EXPECT_EQ(stream.value()->end().code(), StatusCode::kPeerLost);
  EXPECT_EQ(stream.value()->TryRead(&byte, 1), Stream::kClosed);
}

}  // namespace
}  // namespace ring_keras
