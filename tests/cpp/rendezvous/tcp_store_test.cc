// The store as ranks use it when nothing goes wrong.
#include "tf_ops/rendezvous/tcp_store.h"

#include <future>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tests/cpp/rendezvous/store_test_support.h"
#include "tests/cpp/support/test.h"
#include "tf_ops/rendezvous/limits.h"

namespace ring_keras {
namespace {

RING_TEST(OneRankMayCallFromManyThreads) {
  const auto server = StartServer(1);
  const auto store = Join(*server, 0);
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 8; ++thread) {
    threads.emplace_back([&, thread] {
      for (int round = 0; round < 20; ++round) {
        const std::string value = StrCat(thread, "/", round);
        const auto values = store->Gather(StrCat(thread), value, Soon());
        ASSERT_OK(values.status());
        EXPECT_EQ(values.value().at(0), value);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

RING_TEST(ValuesAreBytesUpToTheLimit) {
  const auto server = StartServer(1);
  const auto store = Join(*server, 0);
  std::string value(kMaxValueBytes, '\0');
  for (size_t i = 0; i < value.size(); ++i) value[i] = static_cast<char>(i);
  const auto got = store->Gather("large", value, Soon());
  ASSERT_OK(got.status());
  EXPECT_TRUE(got.value().at(0) == value);
  const auto refused = [&](const std::string& topic, const std::string& bytes) {
    return store->Gather(topic, bytes, Soon()).status().code();
  };
  EXPECT_EQ(refused("too large", value + "x"), StatusCode::kInvalidArgument);
  EXPECT_EQ(refused("", value), StatusCode::kInvalidArgument);
  EXPECT_EQ(refused(std::string(kMaxNameBytes + 1, 't'), value),
            StatusCode::kInvalidArgument);
}

RING_TEST(ALeavingRankIsAnnouncedWithItsReason) {
  const auto server = StartServer(2);
  const auto watching = Join(*server, 0);
  EventLog log;
  watching->Watch(log.Watcher());
  const auto leaving = Join(*server, 1);
  leaving->Leave("training is over");
  leaving->Leave("said twice");

  const RankEvent event = log.WaitFor(1)[0];
  EXPECT_EQ(event.kind, RankEvent::Kind::kLeft);
  EXPECT_EQ(event.rank, 1);
  EXPECT_TRUE(Has(event.description, "rank 1 (host node7, pid ") &&
              Has(event.description, ") left: training is over"))
      << event.description;
  EXPECT_EQ(leaving->Gather("topic", "", Soon()).status().code(),
            StatusCode::kAborted);
  ASSERT_EQ(server->ended_ranks().size(), 1);
  EXPECT_EQ(server->ended_ranks()[0].description, event.description);
}

RING_TEST(ADestroyedStoreHasLeft) {
  const auto server = StartServer(2);
  const auto watching = Join(*server, 0);
  EventLog log;
  watching->Watch(log.Watcher());
  Join(*server, 1).reset();
  EXPECT_EQ(log.WaitFor(1)[0].kind, RankEvent::Kind::kLeft);
}

RING_TEST(ALateWatcherAndALateRankLearnWhatTheyMissed) {
  const auto server = StartServer(3);
  const auto early = Join(*server, 0);
  EventLog first;
  early->Watch(first.Watcher());
  Join(*server, 1)->Leave("done");
  first.WaitFor(1);

  const auto late = Join(*server, 2);
  EventLog second;
  late->Watch(second.Watcher());
  EXPECT_EQ(second.WaitFor(1)[0].rank, 1);
}

RING_TEST(ARankThatLeftEndsAGather) {
  const auto server = StartServer(2);
  const auto store = Join(*server, 0);
  auto waiting = std::async(std::launch::async,
                            [&] { return store->Gather("topic", "", Soon()); });
  Join(*server, 1).reset();
  const Status status = waiting.get().status();
  EXPECT_EQ(status.code(), StatusCode::kPeerLost);
  EXPECT_TRUE(Has(status.message(), "left: shutdown")) << status.message();
}

RING_TEST(ARankJoinsAStoreThatComesLater) {
  int port = 0;
  {
    const auto server = StartServer(1);
    port = server->port();
  }
  auto rank = std::async(std::launch::async, [&] {
    return ConnectTcpStore(RankOptions(port, 0)).status();
  });
  const auto server =
      StartServer(1, [&](TcpStoreServerOptions& o) { o.port = port; });
  EXPECT_OK(rank.get());
}

RING_TEST(NobodyThereEndsAtTheDeadline) {
  int port = 0;
  {
    const auto server = StartServer(1);
    port = server->port();
  }
  TcpStoreOptions options = RankOptions(port, 0);
  options.connect_deadline = Deadline::After(0.05);
  const Status status = ConnectTcpStore(options).status();
  EXPECT_EQ(status.code(), StatusCode::kDeadlineExceeded);
  EXPECT_TRUE(Has(status.message(), StrCat("127.0.0.1:", port)))
      << status.message();
}

RING_TEST(KnowsTheAddressThatReachesTheStore) {
  const auto server = StartServer(1);
  EXPECT_EQ(Join(*server, 0)->LocalAddress(), "127.0.0.1");
}

RING_TEST(NamesAreResolved) {
  const auto server = StartServer(1);
  TcpStoreOptions options = RankOptions(server->port(), 0);
  options.host = "localhost";
  EXPECT_OK(ConnectTcpStore(options).status());
}

RING_TEST(ServesOverIpv6WhereThereIsOne) {
  TcpStoreServerOptions server_options;
  server_options.bind_address = "::1";
  server_options.generation = kGeneration;
  server_options.token = kToken;
  auto server = TcpStoreServer::Start(server_options);
  if (!server.ok()) return;  // This machine has no IPv6.
  TcpStoreOptions options = RankOptions(server.value()->port(), 0);
  options.host = "::1";
  StatusOr<std::unique_ptr<TcpStore>> store = ConnectTcpStore(options);
  ASSERT_OK(store.status());
  EXPECT_EQ(store.value()->LocalAddress(), "::1");
}

RING_TEST(ServerRefusesBadOptions) {
  const auto code = [](const std::function<void(TcpStoreServerOptions&)>& set) {
    TcpStoreServerOptions options;
    options.token = kToken;
    set(options);
    return TcpStoreServer::Start(options).status().code();
  };
  using Options = TcpStoreServerOptions;
  EXPECT_EQ(code([](Options& o) { o.token = "short"; }),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(code([](Options& o) { o.size = 0; }), StatusCode::kInvalidArgument);
  EXPECT_EQ(code([](Options& o) { o.port = 65536; }),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(code([](Options& o) { o.bind_address = "0.0.0.0"; }),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(code([](Options& o) { o.bind_address = "192.0.2.1"; }),
            StatusCode::kInternal);
}

RING_TEST(WhoLeavesComesBackInTheNextGeneration) {
  const auto server = StartServer(2);
  auto first = Join(*server, 0);
  auto second = Join(*server, 1);
  EXPECT_EQ(first->generation(), kGeneration);
  first->Leave("done");

  TcpStoreOptions early = RankOptions(server->port(), 0);
  early.connect_deadline = Deadline::After(0.3);
  const Status status = ConnectTcpStore(early).status();
  EXPECT_EQ(status.code(), StatusCode::kDeadlineExceeded);
  EXPECT_TRUE(Has(status.message(), "rank 1 has not called shutdown()"))
      << status.message();

  // Waits for rank 1, which leaves meanwhile.
  std::unique_ptr<TcpStore> back;
  std::thread waiting([&] { back = Join(*server, 0); });
  second->Leave("done too");
  waiting.join();
  EXPECT_EQ(back->generation(), kGeneration + 1);
  second = Join(*server, 1);
  EXPECT_EQ(second->generation(), kGeneration + 1);

  // Nothing of the first generation is left: its ends would fail this at once.
  EventLog log;
  second->Watch(log.Watcher());
  EXPECT_EQ(second->Gather("topic", "", Deadline::After(0.2)).status().code(),
            StatusCode::kDeadlineExceeded);
  back->Leave("again");
  const std::vector<RankEvent> events = log.WaitFor(1);
  EXPECT_EQ(events.size(), 1);
  EXPECT_TRUE(Has(events[0].description, "left: again"));
  EXPECT_EQ(server->ended_ranks().size(), 1);
}

}  // namespace
}  // namespace ring_keras
