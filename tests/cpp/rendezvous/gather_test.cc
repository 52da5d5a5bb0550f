// Gathers: each rank gives one value, and all get all.
#include <sys/resource.h>

#include <atomic>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tests/cpp/rendezvous/store_test_support.h"
#include "tests/cpp/support/test.h"
#include "tf_ops/rendezvous/gather_table.h"
#include "tf_ops/rendezvous/gathered_values.h"
#include "tf_ops/rendezvous/limits.h"

namespace ring_keras {
namespace {

using rendezvous::DecodeValues;
using rendezvous::EncodeValues;
using rendezvous::GatherTable;
using Values = std::vector<std::string>;

RING_TEST(ValuesSurviveTheirEncoding) {
  for (const Values& values : std::vector<Values>{
           {},
           {""},
           {"", "", ""},
           {"one"},
           {"same", "same", "same", "other", "same"},
           {"host a, rank 0", "host a, rank 1", "host b, rank 2", "host", ""},
           {std::string("\0\0", 2), std::string("\0", 1), "\xff"}}) {
    const auto decoded = DecodeValues(EncodeValues(values), values.size());
    ASSERT_OK(decoded.status());
    EXPECT_TRUE(decoded.value() == values);
  }
}

RING_TEST(WhatValuesHaveInCommonIsWrittenOnce) {
  const std::string common(300, 'c');
  Values cards(1000, common);
  EXPECT_TRUE(EncodeValues(cards).size() < 400);
  for (size_t i = 0; i < cards.size(); ++i) cards[i] += StrCat("/", i);
  EXPECT_TRUE(EncodeValues(cards).size() < 20'000);
}

RING_TEST(NonsenseIsNotDecoded) {
  const std::string good = EncodeValues({"one", "onto", "onto"});
  EXPECT_OK(DecodeValues(good, 3).status());
  for (size_t count : {0, 2, 4}) {
    EXPECT_FALSE(DecodeValues(good, count).ok()) << count;
  }
  for (size_t length = 0; length < good.size(); ++length) {
    EXPECT_FALSE(DecodeValues(good.substr(0, length), 3).ok()) << length;
  }
  // Begins with more of the value before than there is.
  std::string beyond = good;
  beyond[4] = 1;
  EXPECT_FALSE(DecodeValues(beyond, 3).ok());
}

// As the store bounds what it gathers. A few bytes can stand for a lot.
RING_TEST(MoreThanTheStoreGathersIsNotDecoded) {
  const std::string large(kMaxValueBytes, 'x');
  const size_t most = kMaxGatheredBytes / kMaxValueBytes;
  for (const size_t count : {most, most + 1}) {
    const std::string text = EncodeValues(Values(count, large));
    EXPECT_EQ(DecodeValues(text, count).ok(), count == most) << count;
  }
}

RING_TEST(ATableKeepsTopicsApartAndBeginsThemAnew) {
  GatherTable table(2);
  std::vector<GatherTable::Waiter> released;
  const auto give = [&](int rank, uint64_t id, const std::string& topic,
                        const std::string& value) {
    const auto values = table.Give({rank, id, topic}, value, &released);
    EXPECT_OK(values.status());
    return values.value().value_or(Values());
  };
  EXPECT_TRUE(give(1, 1, "a", "one").empty());
  EXPECT_TRUE(give(1, 2, "b", "two").empty());
  EXPECT_EQ(table.Give({1, 3, "a"}, "again", &released).status().code(),
            StatusCode::kInvalidArgument);
  EXPECT_TRUE(give(0, 1, "a", "zero") == Values({"zero", "one"}));
  ASSERT_EQ(released.size(), 2);
  EXPECT_EQ(released[1].request_id, 1);
  EXPECT_TRUE(give(0, 2, "a", "new").empty());

  // Who stops waiting has given nothing.
  EXPECT_TRUE(table.Cancel(0, 2) == std::vector<int>{1});
  EXPECT_TRUE(table.Cancel(0, 2).empty());
  EXPECT_TRUE(give(1, 4, "a", "later").empty());
  EXPECT_EQ(table.TakeAllParked().size(), 2);  // Of a and b.
  EXPECT_TRUE(table.TakeAllParked().empty());
}

RING_TEST(ATableIsBounded) {
  GatherTable table(1000);
  std::vector<GatherTable::Waiter> released;
  const auto give = [&](int rank) {
    return table
        .Give({rank, 1, "a"}, std::string(kMaxValueBytes, 'v'), &released)
        .status()
        .code();
  };
  int rank = 0;
  while (rank < 100 && give(rank) == StatusCode::kOk) ++rank;
  EXPECT_EQ(rank, 63);  // With what an entry costs beside its bytes.
  EXPECT_EQ(give(rank), StatusCode::kResourceExhausted);
  table.CancelAll(0);
  EXPECT_EQ(give(rank), StatusCode::kOk);
}

RING_TEST(ATableCountsItsTopics) {
  GatherTable table(2);
  std::vector<GatherTable::Waiter> released;
  const auto give = [&](uint64_t number) {
    const std::string topic = std::to_string(number);
    const std::string padded(kMaxNameBytes - topic.size(), 't');
    return table.Give({0, number, padded + topic}, "", &released).status();
  };
  // Each has its name, and so has who waits.
  constexpr uint64_t kMost =
      kMaxGatheredBytes / (2 * (kStoreEntryBytes + kMaxNameBytes));
  for (uint64_t number = 0; number < kMost; ++number) ASSERT_OK(give(number));
  EXPECT_EQ(give(kMost).code(), StatusCode::kResourceExhausted);
  table.CancelAll(0);
  EXPECT_OK(give(kMost));
}

std::unique_ptr<TcpStore> JoinOf(int size, const TcpStoreServer& server,
                                 int rank) {
  TcpStoreOptions options = RankOptions(server.port(), rank);
  options.size = size;
  auto store = ConnectTcpStore(options);
  EXPECT_OK(store.status());
  return std::move(store.value());
}

RING_TEST(EveryRankGetsTheValuesOfAll) {
  constexpr int kSize = 4;
  const auto server = StartServer(kSize);
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < kSize; ++rank) {
    ranks.emplace_back([&, rank] {
      const auto store = JoinOf(kSize, *server, rank);
      for (int round = 0; round < 3; ++round) {
        // All together are more than a frame of a client may be.
        Values expected;
        for (int other = 0; other < kSize; ++other) {
          expected.push_back(StrCat(round, "/", other) +
                             std::string(kMaxValueBytes / 2, 'a' + other));
        }
        const auto values = store->Gather("topic", expected[rank], Soon());
        ASSERT_OK(values.status());
        EXPECT_TRUE(values.value() == expected);
      }
    });
  }
  for (std::thread& thread : ranks) thread.join();
}

RING_TEST(WhoIsMissingAtTheDeadlineIsNamed) {
  const auto server = StartServer(3);
  const auto first = JoinOf(3, *server, 0);
  const auto second = JoinOf(3, *server, 1);
  auto waiting = std::async(std::launch::async,
                            [&] { return second->Gather("a", "1", Soon()); });
  Status status;
  do {  // Rank 1's value may not be there yet.
    status = first->Gather("a", "0", Deadline::After(0.05)).status();
    EXPECT_EQ(status.code(), StatusCode::kDeadlineExceeded);
  } while (status.message() == "ranks 1, 2 of 3");
  EXPECT_EQ(status.message(), "rank 2 of 3");
  // What it gave does not count any more, until it gives it again.
  const auto third = JoinOf(3, *server, 2);
  EXPECT_EQ(third->Gather("a", "2", Deadline::After(0.05)).status().message(),
            "rank 0 of 3");
  auto last = std::async(std::launch::async,
                         [&] { return third->Gather("a", "two", Soon()); });
  const auto values = first->Gather("a", "zero", Soon());
  ASSERT_OK(values.status());
  EXPECT_TRUE(values.value() == Values({"zero", "1", "two"}));
  EXPECT_OK(waiting.get().status());
  EXPECT_OK(last.get().status());
}

RING_TEST(ADeathEndsAGather) {
  const auto server = StartServer(3);
  const auto store = JoinOf(3, *server, 0);
  auto waiting = std::async(std::launch::async,
                            [&] { return store->Gather("a", "0", Soon()); });
  auto paused =
      std::async(std::launch::async, [&] { return store->Pause(Soon()); });
  RawConnection::AsRank(*server, 1).Close();
  for (const Status& status : {waiting.get().status(), paused.get()}) {
    EXPECT_EQ(status.code(), StatusCode::kPeerLost);
    EXPECT_TRUE(Has(status.message(), "rank 1 (host node7, pid 4711) died"))
        << status.message();
  }
  // And all later ones.
  EXPECT_EQ(store->Gather("b", "0", Soon()).status().code(),
            StatusCode::kPeerLost);
}

RING_TEST(AnotherNumberOfRanksIsAnError) {
  const auto server = StartServer(1);
  const Status status =
      JoinOf(2, *server, 0)->Gather("a", "0", Soon()).status();
  EXPECT_EQ(status.code(), StatusCode::kInternal);
  EXPECT_TRUE(Has(status.message(), "RING_KERAS_SIZE")) << status.message();
}

RING_TEST(AnInterruptionEndsEveryWait) {
  const auto server = StartServer(2);
  const auto store = JoinOf(2, *server, 0);
  std::atomic<int> asked{0};
  const Interruption interruption = [&] { return ++asked % 3 == 0; };
  const Deadline deadline = Soon().EndedBy(&interruption);
  const auto code = [](const Status& status) { return status.code(); };
  EXPECT_EQ(code(store->Gather("a", "0", deadline).status()),
            StatusCode::kInterrupted);
  EXPECT_EQ(code(store->Pause(deadline)), StatusCode::kInterrupted);
  // Nobody answers there.
  TcpStoreOptions options = RankOptions(server->port(), 1);
  const auto listener = Listen("127.0.0.1", 0);
  ASSERT_OK(listener.status());
  options.port = LocalPort(listener.value().get());
  options.connect_deadline = deadline;
  EXPECT_EQ(code(ConnectTcpStore(options).status()), StatusCode::kInterrupted);
  EXPECT_EQ(asked.load(), 9);
  // What it gave does not count.
  const auto other = JoinOf(2, *server, 1);
  EXPECT_EQ(other->Gather("a", "1", Deadline::After(0.05)).status().message(),
            "rank 0 of 2");
}

RING_TEST(AServerMayOpenADescriptorForEachRank) {
  rlimit before = {};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  rlimit low = before;
  low.rlim_cur = 256;
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &low), 0);
  constexpr int kSize = 1000;
  StartServer(kSize);
  rlimit after = {};
  getrlimit(RLIMIT_NOFILE, &after);
  EXPECT_TRUE(after.rlim_cur > kSize) << after.rlim_cur;
  EXPECT_EQ(after.rlim_max, before.rlim_max);
  setrlimit(RLIMIT_NOFILE, &before);

  TcpStoreServerOptions options;
  options.token = kToken;
  options.size = 1 << 30;  // More than a hard limit can be.
  const Status status = TcpStoreServer::Start(options).status();
  EXPECT_EQ(status.code(), StatusCode::kResourceExhausted);
  EXPECT_TRUE(Has(status.message(), "ulimit -Hn")) << status.message();
}

}  // namespace
}  // namespace ring_keras
