// Jobs whose ranks connect when they need it: everything works as where all are
// connected, over few connections.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <future>
#include <string>
#include <thread>
#include <vector>

#include "tests/cpp/support/run_ranks.h"
#include "tests/cpp/support/sockets.h"
#include "tests/cpp/support/test.h"
#include "tf_ops/runtime/tcp_links.h"
#include "tf_ops/tls/tls_session.h"

namespace ring_keras {
namespace {

using testing::FloatRequest;
using testing::PortOfNobody;
using testing::Rank;
using testing::RankOptions;
using testing::RunRanks;
using testing::WaitFor;

constexpr int kSoonS = 20;

RankOptions Late(int size, int hosts) {
  RankOptions setup;
  setup.size = size;
  setup.hosts = hosts;
  setup.collective_timeout_s = kSoonS;
  setup.max_direct_peers = 0;
  return setup;
}

// More than a tree has on one level, and hosts of one, of several, of unequal
// many.
std::vector<RankOptions> LateSetups() {
  return {Late(2, 2), Late(3, 3), Late(5, 2), Late(7, 3), Late(12, 12)};
}

Status Sum(Rank& self, const std::string& name, int64_t count,
           int communicator_id = 0) {
  std::vector<float> data(count, static_cast<float>(self.rank));
  Request request = FloatRequest(CollectiveKind::kAllreduce, name, data);
  request.communicator_id = communicator_id;
  const Status status = self.engine->Run(std::move(request));
  if (!status.ok() || communicator_id != 0) return status;
  const float sum = static_cast<float>(self.size * (self.size - 1) / 2);
  for (float value : data) EXPECT_EQ(value, sum);
  return status;
}

std::vector<float> Gathered(Rank& self, CollectiveKind kind, int64_t count) {
  std::vector<float> data(count, static_cast<float>(self.rank));
  std::vector<float> output;
  Request request = FloatRequest(kind, NameOf(kind), data);
  request.outputs.clear();
  request.allocate_output = [&](const Shape& shape) -> StatusOr<void*> {
    output.resize(ElementCount(shape));
    return static_cast<void*>(output.data());
  };
  EXPECT_OK(self.engine->Run(std::move(request)));
  return output;
}

int ConnectedCount(Rank& self) {
  int count = 0;
  self.engine->WithDriver(
      [&] { count = self.engine->mesh().connected_count(); });
  return count;
}

RING_TEST(EveryKindWorksAndIsTheSameAgain) {
  for (const RankOptions& setup : LateSetups()) {
    RunRanks(setup, [](Rank& self) {
      for (int turn = 0; turn < 3; ++turn) {
        for (int64_t count : {1, 2000, 100000, 400000}) {
          ASSERT_OK(Sum(self, StrCat("sum of ", count), count));
        }
        // Uneven, and some have none.
        const int64_t rows = self.rank % 3 * 2500;
        const std::vector<float> all =
            Gathered(self, CollectiveKind::kAllgather, rows);
        std::vector<float> expected;
        for (int rank = 0; rank < self.size; ++rank) {
          expected.insert(expected.end(), rank % 3 * 2500,
                          static_cast<float>(rank));
        }
        ASSERT_TRUE(all == expected) << "rank " << self.rank;
        std::vector<float> data(70000, static_cast<float>(self.rank));
        Request request =
            FloatRequest(CollectiveKind::kBroadcast, "from 1", data);
        request.root = 1;
        ASSERT_OK(self.engine->Run(std::move(request)));
        ASSERT_EQ(data.back(), 1.0f);
      }
      const std::vector<float> swapped =
          Gathered(self, CollectiveKind::kAlltoall, 1000 * self.size);
      for (int rank = 0; rank < self.size; ++rank) {
        ASSERT_EQ(swapped[1000 * rank], static_cast<float>(rank));
      }
      const std::vector<float> part =
          Gathered(self, CollectiveKind::kReduceScatter, 1000 * self.size);
      ASSERT_EQ(part.size(), 1000u);
      ASSERT_EQ(part[0], static_cast<float>(self.size * (self.size - 1) / 2));
    });
  }
}

// What a training does: sums of all sizes, broadcasts, objects.
RING_TEST(ATrainingNeedsFewConnections) {
  constexpr int kSize = 24;
  std::atomic<int> most{0};
  RunRanks(Late(kSize, kSize), [&](Rank& self) {
    for (int64_t count : {1, 2000, 100000, 400000}) {
      ASSERT_OK(Sum(self, StrCat("sum of ", count), count));
    }
    Gathered(self, CollectiveKind::kAllgather, 5000);
    std::vector<float> data(70000, 0.0f);
    ASSERT_OK(self.engine->Run(
        FloatRequest(CollectiveKind::kBroadcast, "weights", data)));
    const int count = ConnectedCount(self);
    int seen = most.load();
    while (seen < count && !most.compare_exchange_weak(seen, count)) {
    }
    ASSERT_OK(Sum(self, "all have counted", 1));
  });
  // The tree's, and the partners of doubling and of halving, some of whom are
  // the same.
  EXPECT_TRUE(most.load() <= 17) << most.load();
  EXPECT_TRUE(most.load() > 0);
}

RING_TEST(DisagreementIsTheSameErrorOnEveryRank) {
  for (const RankOptions& setup : LateSetups()) {
    std::vector<std::string> told(setup.size);
    RunRanks(setup, [&](Rank& self) {
      ASSERT_OK(Sum(self, "before", 10));
      const Status status = Sum(self, "odd", self.rank == 1 ? 2001 : 2000);
      EXPECT_EQ(status.code(), StatusCode::kRankMismatch);
      told[self.rank] = status.message();
      ASSERT_OK(Sum(self, "after", 100000));
    });
    for (const std::string& message : told) EXPECT_EQ(message, told[0]);
  }
}

// Of one that passes on what others say, and of one that has its word passed
// on.
RING_TEST(AnInterruptedRankIsToldToAll) {
  for (int interrupted : {0, 11}) {
    RunRanks(Late(12, 12), [&](Rank& self) {
      ASSERT_OK(Sum(self, "before", 10));
      ASSERT_OK(
          self.store->Gather("begun", "", Deadline::After(kSoonS)).status());
      std::atomic<bool> ended{false};
      std::vector<float> data(10, 1.0f);
      // The others wait for rank 1, which passes on what they say all the same.
      if (self.rank == 1) {
        ASSERT_OK(
            self.store->Gather("ended", "", Deadline::After(kSoonS)).status());
        return;
      }
      self.engine->Submit(
          FloatRequest(CollectiveKind::kAllreduce, "pending", data),
          [&](const Status& status) {
            EXPECT_EQ(status.code(), self.rank == interrupted
                                         ? StatusCode::kAborted
                                         : StatusCode::kPeerStopped);
            EXPECT_TRUE(status.message().find(
                            StrCat("rank ", interrupted, " (host")) == 0)
                << status.message();
            ended = true;
          });
      if (self.rank == interrupted) self.engine->Interrupt(0);
      EXPECT_TRUE(WaitFor([&] { return ended.load(); }))
          << "rank " << self.rank;
      ASSERT_OK(
          self.store->Gather("ended", "", Deadline::After(kSoonS)).status());
    });
  }
}

// One of the ring's, which the tree does not need: ten ranks have only others'
// word that two cannot reach each other.
RING_TEST(ABrokenLinkIsToldToAll) {
  std::vector<std::string> told(12);
  RunRanks(Late(12, 12), [&](Rank& self) {
    ASSERT_OK(Sum(self, "before", 400000));
    ASSERT_OK(
        self.store->Gather("begun", "", Deadline::After(kSoonS)).status());
    if (self.rank == 5) {
      self.engine->WithDriver(
          [&] { self.engine->mesh().pair(6).CloseForWriting(); });
    }
    const Status status = Sum(self, "after", 400000);
    EXPECT_EQ(status.code(), StatusCode::kPeerLost);
    told[self.rank] = status.message();
    ASSERT_OK(
        self.store->Gather("ended", "", Deadline::After(kSoonS)).status());
  });
  for (const std::string& message : told) {
    EXPECT_TRUE(message.find("the connection between rank 5 ") == 0) << message;
    EXPECT_EQ(message, told[0]);
  }
}

RING_TEST(EncryptedConnectionsAreMadeTheSameWay) {
  if (!tls::CheckAvailable().ok()) return;
  RankOptions setup = Late(5, 5);
  setup.encrypts = true;
  RunRanks(setup, [](Rank& self) {
    for (int64_t count : {1, 2000, 400000}) {
      ASSERT_OK(Sum(self, StrCat("sum of ", count), count));
    }
  });
}

// Rank 1, above others in the tree, leaves without a word.
RING_TEST(ARankThatLeavesIsNotWaitedFor) {
  RunRanks(Late(12, 12), [&](Rank& self) {
    ASSERT_OK(Sum(self, "before", 10));
    if (self.rank == 1) return;
    const Status status = Sum(self, "after", 100000);
    EXPECT_EQ(status.code(), StatusCode::kPeerLost);
    EXPECT_TRUE(status.message().find("rank 1 (host") != std::string::npos)
        << status.message();
  });
}

// Rank 0, over which all hear of each other, has said that it cannot take part,
// and is gone when the others say theirs.
RING_TEST(ARelayThatGivesUpAndLeavesIsNotWaitedFor) {
  RankOptions setup = Late(12, 12);
  setup.collective_timeout_s = 600;
  RunRanks(setup, [&](Rank& self) {
    ASSERT_OK(Sum(self, "before", 10));
    ASSERT_OK(
        self.store->Gather("summed", "", Deadline::After(kSoonS)).status());
    if (self.rank == 0) {
      std::vector<float> data(10, 1.0f);
      Request request = FloatRequest(CollectiveKind::kAllreduce, "after", data);
      request.able = Status(StatusCode::kInvalidArgument, "not able");
      EXPECT_EQ(self.engine->Run(std::move(request)).code(),
                StatusCode::kInvalidArgument);
      ASSERT_TRUE(self.engine->AwaitSent(kSoonS));
      return;
    }
    EXPECT_EQ(self.store->Pause(Deadline::After(kSoonS)).code(),
              StatusCode::kPeerLost);
    const Status status = Sum(self, "after", 10);
    EXPECT_EQ(status.code(), StatusCode::kPeerLost);
    EXPECT_TRUE(status.message().find("rank 0 (host") != std::string::npos)
        << status.message();
  });
}

// So that no rank's word waits for a connection.
RING_TEST(TheTreeIsThereFromTheBeginning) {
  RunRanks(Late(12, 12), [](Rank& self) {
    int connected = 0;
    self.engine->WithDriver([&] {
      Mesh& mesh = self.engine->mesh();
      mesh.Pump();
      for (int rank = 0; rank < self.size; ++rank) {
        const bool is_above = rank == (self.rank - 1) / kTreeDegree;
        if (rank != self.rank && is_above)
          connected += mesh.pair(rank).connected();
      }
    });
    EXPECT_EQ(connected, self.rank > 0 ? 1 : 0);
    ASSERT_OK(Sum(self, "all have counted", 1));
  });
}

RING_TEST(AGroupOfRanksNeedsNoneOfTheOthers) {
  RunRanks(Late(12, 12), [&](Rank& self) {
    self.engine->AddCommunicator(1, {2, 9, 11});
    self.engine->AddCommunicator(2, {0, 1, 3, 4, 5, 6, 7, 8, 10});
    ASSERT_OK(Sum(self, "all have the groups", 1));
    const bool in_first = self.rank == 2 || self.rank == 9 || self.rank == 11;
    // The second is gone before the first has begun.
    if (!in_first) {
      ASSERT_OK(Sum(self, "group", 5000, 2));
      return;
    }
    EXPECT_EQ(self.store->Pause(Deadline::After(kSoonS)).code(),
              StatusCode::kPeerLost);
    for (int64_t count : {1, 2000, 100000}) {
      ASSERT_OK(Sum(self, StrCat("group of ", count), count, 1));
    }
  });
}

// A job of few ranks connects all when it starts.
RING_TEST(AFewRanksAreConnectedFromTheBeginning) {
  RankOptions setup = Late(4, 4);
  setup.max_direct_peers = 3;
  RunRanks(setup, [](Rank& self) {
    EXPECT_EQ(ConnectedCount(self), 3);
    EXPECT_TRUE(self.engine->mesh().connects_all());
    ASSERT_OK(Sum(self, "sum", 100000));
  });
}

class GatherOfTwo : public Store {
 public:
  explicit GatherOfTwo(std::string other) : other_(std::move(other)) {}
  StatusOr<std::vector<std::string>> Gather(const std::string&,
                                            const std::string& value,
                                            Deadline) override {
    return std::vector<std::string>{other_, value};
  }
  Status Pause(Deadline) override { return {}; }
  void Watch(std::function<void(const RankEvent&)>) override {}
  void Leave(const std::string&) override {}

 private:
  const std::string other_;
};

TcpLinkOptions ImpatientOptions(int rank, const std::string& token) {
  TcpLinkOptions options;
  options.rank = rank;
  options.generation = 4;
  options.token = token;
  options.bind_addresses = {"127.0.0.1"};
  options.streams = 2;
  options.unreachable_after_s = 0.4;
  return options;
}

std::unique_ptr<TcpLinks> OfRankOne(GatherOfTwo& store, Poller& poller) {
  auto links = TcpLinks::Start(
      ImpatientOptions(1, std::string(32, 't')), {0}, poller, [] {}, store,
      Deadline::After(kSoonS));
  EXPECT_OK(links.status());
  return std::move(links.value());
}

NewLink Await(TcpLinks& links) {
  WaitFor([&] { return links.has_new(); });
  std::vector<NewLink> taken = links.Take();
  EXPECT_EQ(taken.size(), 1u);
  return taken.empty() ? NewLink() : std::move(taken[0]);
}

RING_TEST(WhoCannotBeReachedIsNamedWithBothAddresses) {
  const int port = PortOfNobody();
  GatherOfTwo store(StrCat("2 127.0.0.1 ", port));
  const auto poller = std::move(Poller::Create().value());
  const auto links = OfRankOne(store, *poller);
  links->Open(0);
  const NewLink link = Await(*links);
  EXPECT_EQ(link.peer, 0);
  // Nobody need be waited for who would know more.
  EXPECT_EQ(link.failure.code(), StatusCode::kDeadlineExceeded);
  EXPECT_EQ(link.addresses.first, "127.0.0.1");
  EXPECT_EQ(link.addresses.second, StrCat("127.0.0.1:", port));
}

RING_TEST(AnotherNumberOfStreamsIsAnErrorOnEveryRank) {
  GatherOfTwo store("3 127.0.0.1 1");
  const auto poller = std::move(Poller::Create().value());
  const auto links = TcpLinks::Start(
      ImpatientOptions(1, std::string(32, 't')), {0}, *poller, [] {}, store,
      Deadline::After(kSoonS));
  EXPECT_EQ(links.status().code(), StatusCode::kRankMismatch);
  EXPECT_TRUE(links.status().message().find("it is 3 on rank 0 and 2 on "
                                            "rank 1") != std::string::npos)
      << links.status().message();
}

// In a large job some hear of it by way of others.
RING_TEST(NobodyTiresOfWaitingForARankThatIsDebugged) {
  RankOptions setup = Late(12, 12);
  setup.collective_timeout_s = 2;
  RunRanks(setup, [](Rank& self) {
    EXPECT_OK(Sum(self, "before", 10));
    if (self.rank == 5) {
      self.engine->TellDebugged(true);
      std::this_thread::sleep_for(std::chrono::seconds(3));
      self.engine->TellDebugged(false);
    }
    EXPECT_OK(Sum(self, "after", 10));
  });
}

}  // namespace
}  // namespace ring_keras
