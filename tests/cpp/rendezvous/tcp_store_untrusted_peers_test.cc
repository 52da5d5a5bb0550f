// The store against those who do not belong: nobody gets in, every one is
// named in the log, and the job goes on.
#include <memory>
#include <string>
#include <vector>

#include "tests/cpp/rendezvous/store_test_support.h"
#include "tests/cpp/support/standard_error_capture.h"
#include "tests/cpp/support/test.h"
#include "tf_ops/rendezvous/limits.h"
#include "tf_ops/rendezvous/tcp_store.h"
#include "tf_ops/rendezvous/tcp_store_server.h"
#include "tf_ops/rendezvous/wire.h"

namespace ring_keras {
namespace {

using rendezvous::Frame;
using rendezvous::FrameType;
using testing::StandardErrorCapture;

// A rank that joined the job so that it is wrong in one way only.
Status JoinStatus(const TcpStoreServer& server,
                  const std::function<void(TcpStoreOptions&)>& adjust) {
  TcpStoreOptions options = RankOptions(server.port(), 1);
  adjust(options);
  return ConnectTcpStore(options).status();
}

RING_TEST(GarbageIsDroppedAndNamedWhileTheJobRuns) {
  const auto server = StartServer(2);
  const auto store = Join(*server, 0);
  std::string log;
  std::string address;
  {
    StandardErrorCapture capture;
    RawConnection untrusted(*server);
    address = StrCat("127.0.0.1:", LocalPort(untrusted.fd()));
    untrusted.Send("GET / HTTP/1.1\r\nHost: store\r\n\r\n");
    EXPECT_EQ(untrusted.ReadUntilClosed(), "");
    log = capture.Text();
  }
  EXPECT_TRUE(Has(log, "WARNING") && Has(log, address) &&
              Has(log, "not a ring_keras peer"))
      << log;
  ExpectAnswered(*store);
  EXPECT_TRUE(server->ended_ranks().empty());
}

RING_TEST(ASlowPeerIsDroppedAtTheDeadline) {
  const auto server = StartServer(2, [](TcpStoreServerOptions& options) {
    options.handshake_timeout_s = 0.2;
  });
  const auto store = Join(*server, 0);
  std::string log;
  {
    StandardErrorCapture capture;
    RawConnection silent(*server);
    RawConnection halfway(*server);
    halfway.Send("RING");
    EXPECT_EQ(silent.ReadUntilClosed(), "");
    EXPECT_EQ(halfway.ReadUntilClosed(), "");
    log = capture.Text();
  }
  EXPECT_TRUE(Has(log, "too slow")) << log;
  ExpectAnswered(*store);
}

RING_TEST(AProvenRankThatNeverSaysItsNameIsLost) {
  const auto server = StartServer(2, [](TcpStoreServerOptions& options) {
    options.handshake_timeout_s = 0.2;
  });
  const auto store = Join(*server, 0);
  EventLog log;
  store->Watch(log.Watcher());
  RawConnection nameless(*server);
  ASSERT_OK(HandshakeAsClient(nameless.fd(), Purpose::kStore,
                              {1, kGeneration, 0}, -1, kToken, Soon())
                .status());
  const RankEvent event = log.WaitFor(1)[0];
  EXPECT_EQ(event.rank, 1);
  EXPECT_TRUE(Has(event.description, "rank 1 (at 127.0.0.1:") &&
              Has(event.description, "too slow"))
      << event.description;
}

RING_TEST(WrongTokenGenerationAndRankAreRefused) {
  const auto server = StartServer(2);
  const auto store = Join(*server, 0);
  Status status = JoinStatus(
      *server, [](TcpStoreOptions& o) { o.token = std::string(32, 'U'); });
  EXPECT_EQ(status.code(), StatusCode::kUnauthenticated);
  EXPECT_TRUE(Has(status.message(), "wrong token")) << status.message();

  status = JoinStatus(*server, [](TcpStoreOptions& o) { o.generation = 9; });
  EXPECT_EQ(status.code(), StatusCode::kUnauthenticated);
  EXPECT_TRUE(Has(status.message(), "expected 4, came 9")) << status.message();

  status = JoinStatus(*server, [](TcpStoreOptions& o) { o.rank = 2; });
  EXPECT_EQ(status.code(), StatusCode::kUnauthenticated);
  EXPECT_TRUE(Has(status.message(), "does not exist")) << status.message();

  status = JoinStatus(*server, [](TcpStoreOptions& o) { o.token = "short"; });
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  ExpectAnswered(*store);
}

RING_TEST(ALiveRankIsNotReplaced) {
  const auto server = StartServer(2);
  const auto store = Join(*server, 1);
  Status status = JoinStatus(*server, [](TcpStoreOptions&) {});
  EXPECT_EQ(status.code(), StatusCode::kUnauthenticated);
  EXPECT_TRUE(Has(status.message(), "holds this rank already"))
      << status.message();
  ExpectAnswered(*store);

  ASSERT_OK(server->ReportExit(1, "exited with code 0"));
  store->Leave("done");
  status = JoinStatus(*server, [](TcpStoreOptions&) {});
  EXPECT_EQ(status.code(), StatusCode::kUnauthenticated);
  EXPECT_TRUE(Has(status.message(), "the process of this rank has ended"))
      << status.message();
}

// Even a rank of the job is held to the bounds.
void ExpectLostFor(const std::string& bytes, const std::string& why) {
  const auto server = StartServer(2);
  const auto store = Join(*server, 0);
  EventLog log;
  store->Watch(log.Watcher());
  RawConnection bad = RawConnection::AsRank(*server, 1);
  bad.Send(bytes);
  const RankEvent event = log.WaitFor(1)[0];
  EXPECT_EQ(event.kind, RankEvent::Kind::kLost);
  EXPECT_TRUE(Has(event.description, why)) << event.description;
  ExpectAnswered(*store);
}

RING_TEST(AFrameOfExcessiveLengthEndsTheConnection) {
  std::string length;
  rendezvous::AppendInteger(length, uint32_t{0xfffffff0});
  ExpectLostFor(length, "came 4294967280");
}

RING_TEST(AFrameOutOfOrderEndsTheConnection) {
  Frame hello;
  hello.type = FrameType::kHello;
  ExpectLostFor(Encode(hello), "hello must come first, and once");
  Frame answer;
  answer.type = FrameType::kAnswer;
  ExpectLostFor(Encode(answer), "only the server sends");
}

// A topic beyond the bounds is answered, not dropped: it is a request's error.
RING_TEST(ABadTopicIsAnsweredWithAnError) {
  const auto server = StartServer(1);
  RawConnection rank = RawConnection::AsRank(*server, 0);
  Frame request;
  request.type = FrameType::kGather;
  request.request_id = 7;
  rank.Send(request);
  const Frame answer = rank.ReadFrame(FrameType::kAnswer);
  EXPECT_EQ(answer.request_id, 7);
  EXPECT_EQ(ErrorOf(answer).code(), StatusCode::kInvalidArgument);
}

RING_TEST(AFloodOfConnectionsKeepsNobodyOut) {
  const auto server = StartServer(2);
  const auto first = Join(*server, 0);
  std::string log;
  {
    StandardErrorCapture capture;
    std::vector<RawConnection> untrusted;
    const size_t count = 2 + kSpareUnauthenticatedConnections + 40;
    for (size_t i = 0; i < count; ++i) untrusted.emplace_back(*server);
    const auto second = Join(*server, 1);
    ExpectAnswered(*second);
    // The oldest had to go for the newest.
    EXPECT_EQ(untrusted.front().ReadUntilClosed(), "");
    log = capture.Text();
  }
  EXPECT_TRUE(Has(log, "too many unauthenticated connections")) << log;
  size_t lines = 0;
  for (char c : log) lines += c == '\n';
  EXPECT_LE(lines, static_cast<size_t>(kMaxWarningsPerWindow));
  ExpectAnswered(*first);
}

RING_TEST(AServerEndsWithEveryKindOfConnectionOpen) {
  auto server = StartServer(3);
  const auto store = Join(*server, 0);
  RawConnection rank = RawConnection::AsRank(*server, 1);
  RawConnection untrusted(*server);
  untrusted.Send("RING");
  server.reset();
  rank.ReadUntilClosed();
  EXPECT_EQ(untrusted.ReadUntilClosed(), "");
}

}  // namespace
}  // namespace ring_keras
