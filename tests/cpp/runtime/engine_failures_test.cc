// Collectives that fail after they began: everything ends, nothing is touched
// afterwards, other communicators go on.
#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tests/cpp/support/run_ranks.h"
#include "tests/cpp/support/test.h"
#include "tf_ops/matching/announcement.h"
#include "tf_ops/runtime/communicator_id.h"
#include "tf_ops/runtime/engine.h"

namespace ring_keras {
namespace {

using testing::Allreduce;
using testing::FloatRequest;
using testing::Rank;
using testing::RankOptions;
using testing::RunRanks;
using testing::WaitFor;

RankOptions Setup(int size, const char* transport) {
  RankOptions setup;
  setup.size = size;
  setup.transport = transport;
  return setup;
}

// Holds the ranks together without the engine: one that leaves would end what
// the others wait for.
void Meet(Rank& self, const std::string& topic) {
  ASSERT_OK(self.store->Gather(topic, "", Deadline::After(30)).status());
}

// Starts large collectives of every kind whose memory goes the moment that
// they end, which AddressSanitizer watches.
class Load {
 public:
  explicit Load(Rank& self) : self_(self) {}

  void Submit() {
    constexpr int64_t kCount = 3000000;
    for (CollectiveKind kind :
         {CollectiveKind::kAllreduce, CollectiveKind::kBroadcast,
          CollectiveKind::kAllgather, CollectiveKind::kReduceScatter,
          CollectiveKind::kAlltoall}) {
      auto data = std::make_shared<std::vector<float>>(kCount, 1.0f);
      auto output = std::make_shared<std::vector<float>>();
      Request request = Allreduce(NameOf(kind), *data);
      request.kind = kind;
      request.allocate_output = [output](const Shape& shape) {
        output->resize(ElementCount(shape));
        return StatusOr<void*>(output->data());
      };
      const bool fused = kind == CollectiveKind::kAllreduce ||
                         kind == CollectiveKind::kBroadcast;
      if (!fused) request.outputs.clear();
      ++started_;
      self_.engine->Submit(std::move(request),
                           [this, data, output](const Status& status) {
                             data->assign(1, 0.0f);
                             data->shrink_to_fit();
                             output->clear();
                             output->shrink_to_fit();
                             failed_ += status.ok() ? 0 : 1;
                             ++ended_;
                           });
    }
  }
  bool ended() const { return ended_ == started_; }
  int failed() const { return failed_; }

 private:
  Rank& self_;
  int started_ = 0;
  std::atomic<int> ended_{0};
  std::atomic<int> failed_{0};
};

// One rank shuts down when the data are about to flow, or do; at another
// moment in every round.
RING_TEST(AShutdownInTheMiddleEndsEverythingEverywhere) {
  for (const char* transport : {"auto", "tcp"}) {
    for (int round = 0; round < 4; ++round) {
      RunRanks(Setup(3, transport), [&](Rank& self) {
        Load load(self);
        load.Submit();
        if (self.rank == 2) {
          std::this_thread::sleep_for(std::chrono::milliseconds(3 * round));
          self.engine->Stop();
        }
        ASSERT_TRUE(WaitFor([&] { return load.ended(); }))
            << transport << " rank " << self.rank << " round " << round;
      });
    }
  }
}

// A ring with pieces at every stage.
RING_TEST(ARingThatBreaksEndsAllItsPieces) {
  for (int round = 0; round < 6; ++round) {
    RunRanks(Setup(3, "tcp"), [&](Rank& self) {
      std::vector<float> data(12000000, 1.0f);
      std::atomic<bool> ended{false};
      Meet(self, "start");
      self.engine->Submit(Allreduce("ring", data),
                          [&](const Status&) { ended = true; });
      std::this_thread::sleep_for(std::chrono::milliseconds(4 * round));
      self.engine->OnRankEvent(
          {RankEvent::Kind::kLost, (self.rank + 1) % 3, "a rank died"});
      ASSERT_TRUE(WaitFor([&] { return ended.load(); }))
          << "rank " << self.rank << " round " << round;
    });
  }
}

// The store's verdict comes while the data flow.
RING_TEST(ALossInTheMiddleEndsEverythingEverywhere) {
  for (const char* transport : {"auto", "tcp"}) {
    RunRanks(Setup(4, transport), [&](Rank& self) {
      Load load(self);
      load.Submit();
      self.engine->OnRankEvent(
          {RankEvent::Kind::kLost, (self.rank + 1) % 4, "a rank died"});
      ASSERT_TRUE(WaitFor([&] { return load.ended(); }))
          << transport << " rank " << self.rank;
      EXPECT_TRUE(load.failed() > 0);
    });
  }
}

// One rank cannot get memory for its output: the others must not wait for it.
RING_TEST(AFailedAllocationIsToldToThePeers) {
  for (const char* transport : {"auto", "tcp"}) {
    RunRanks(Setup(3, transport), [&](Rank& self) {
      self.engine->AddCommunicator(1, {0, 1, 2});
      std::vector<float> data(200000, 1.0f);
      std::vector<float> output;
      Request request = Allreduce("gather", data);
      request.kind = CollectiveKind::kAllgather;
      request.outputs.clear();
      request.allocate_output = [&](const Shape& shape) -> StatusOr<void*> {
        if (self.rank == 1) {
          return Status(StatusCode::kResourceExhausted, "no memory on rank 1");
        }
        output.resize(ElementCount(shape));
        return static_cast<void*>(output.data());
      };
      const Status status = self.engine->Run(std::move(request));
      EXPECT_EQ(status.code(), StatusCode::kResourceExhausted);
      EXPECT_EQ(status.message(), "no memory on rank 1");
      // The other communicator still works.
      std::vector<float> more(100000, 1.0f);
      Request next = Allreduce("next", more);
      next.communicator_id = 1;
      ASSERT_OK(self.engine->Run(std::move(next)));
      EXPECT_EQ(more.back(), 3.0f);
    });
  }
}

// Two ranks make a communicator by themselves, one of them after the other has
// given up waiting in it.
RING_TEST(AMemberThatComesLaterHearsThatTheCommunicatorIsBroken) {
  for (const char* transport : {"auto", "tcp"}) {
    RunRanks(Setup(3, transport), [&](Rank& self) {
      constexpr int kPair = kFirstOfMembers + 7;
      std::vector<float> data(4, self.rank + 1.0f);
      const auto broadcast = [&] {
        Request request =
            FloatRequest(CollectiveKind::kBroadcast, "torch/send", data);
        request.communicator_id = kPair;
        request.root = 1;
        return request;
      };
      if (self.rank == 1) {
        self.engine->AddCommunicator(kPair, {0, 1});
        std::atomic<bool> ended{false};
        self.engine->Submit(broadcast(), [&](const Status&) { ended = true; });
        self.engine->Interrupt(kPair);
        ASSERT_TRUE(WaitFor([&] { return ended.load(); })) << transport;
      }
      // Each hears what rank 1 sent before.
      std::vector<float> all(1, 1.0f);
      ASSERT_OK(self.engine->Run(Allreduce("all", all)));
      // Rank 2 shares the number with nobody.
      if (self.rank != 1) {
        self.engine->AddCommunicator(kPair, self.rank == 0
                                                ? std::vector<int>{0, 1}
                                                : std::vector<int>{2});
      }
      for (int call = 0; call < 2; ++call) {
        if (self.rank == 2) {
          Request alone;
          alone.communicator_id = kPair;
          alone.name = StrCat("alone", call);
          ASSERT_OK(self.engine->Run(std::move(alone)));
        } else {
          const Status status = self.engine->Run(broadcast());
          EXPECT_TRUE(status.code() == (self.rank == 0
                                            ? StatusCode::kPeerStopped
                                            : StatusCode::kAborted))
              << transport << ": " << status.message();
        }
        EXPECT_EQ(data.back(), self.rank + 1.0f);
      }
      Meet(self, "ended");
    });
  }
}

// The last collective is complete on every rank though one leaves at once.
RING_TEST(LeavingRightAfterwardsTakesNothingFromTheOthers) {
  for (int round = 0; round < 5; ++round) {
    RunRanks(Setup(2, "tcp"), [&](Rank& self) {
      std::vector<float> data(1000000, 1.0f);
      ASSERT_OK(self.engine->Run(Allreduce("last", data)));
      EXPECT_EQ(data.back(), 2.0f);
    });
  }
}

// A frame as a defective peer would send it.
void Forge(Rank& self, int to, uint64_t key, const std::string& bytes) {
  self.engine->WithDriver([&] {
    self.engine->mesh().pair(to).SendControl(FrameType::kAnnouncement, key,
                                             bytes);
  });
}

// What each rank hears of a collective after which rank 0 has forged a frame.
std::vector<Status> AfterForged(uint64_t key, const std::string& bytes) {
  std::vector<Status> told(3);
  RankOptions setup = Setup(3, "tcp");
  setup.collective_timeout_s = 15;
  RunRanks(setup, [&](Rank& self) {
    if (self.rank == 0) Forge(self, 1, key, bytes);
    Meet(self, "forged");
    // More than an announcement carries, so that nobody is done with that.
    std::vector<float> data(4096, 1.0f);
    told[self.rank] = self.engine->Run(Allreduce("data", data));
    Meet(self, "ended");
  });
  return told;
}

// Only rank 1 can see it, and the others would wait for its data.
RING_TEST(AnAnnouncementThatCannotBeReadEndsTheCommunicatorEverywhere) {
  for (const Status& status : AfterForged(1, "nonsense")) {
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_TRUE(status.message().find("from rank 0 to rank 1") !=
                std::string::npos)
        << status.message();
  }
}

RING_TEST(TwoNamesOfOneNumberDoNotMeet) {
  UseId use;
  use.name = "data";
  Announcement other;
  other.use.name = "other";
  for (const Status& status : AfterForged(KeyOf(use), Encode(other))) {
    EXPECT_EQ(status.code(), StatusCode::kInternal);
    EXPECT_TRUE(status.message().find("'other'") != std::string::npos)
        << status.message();
  }
}

// A rank that says why it leaves a collective is heard, though its peer reads
// nothing at that moment, and it does nothing more itself.
RING_TEST(AnInterruptReachesAPeerThatReadsLater) {
  RankOptions setup = Setup(2, "tcp");
  setup.collective_timeout_s = 10;
  RunRanks(setup, [&](Rank& self) {
    // More than the sockets hold.
    std::vector<float> data(8 << 20, 1.0f);
    std::vector<float> output;
    std::atomic<bool> begun{false};
    Request request = Allreduce("gather", data);
    request.kind = CollectiveKind::kAllgather;
    request.outputs.clear();
    request.allocate_output = [&](const Shape& shape) -> StatusOr<void*> {
      output.resize(ElementCount(shape));
      if (self.rank == 1) {
        Meet(self, "rank 1 does not read");
        Meet(self, "rank 0 has ended");
      }
      begun = true;  // And goes on to send, in the same turn.
      return static_cast<void*>(output.data());
    };
    if (self.rank == 1) {
      const Status status = self.engine->Run(std::move(request));
      EXPECT_EQ(status.code(), StatusCode::kPeerStopped) << status.message();
      EXPECT_TRUE(status.message().find("was interrupted") != std::string::npos)
          << status.message();
      Meet(self, "rank 1 has ended");
      return;
    }
    std::atomic<bool> ended{false};
    self.engine->Submit(std::move(request), [&](const Status& status) {
      EXPECT_EQ(status.code(), StatusCode::kAborted) << status.message();
      ended = true;
    });
    Meet(self, "rank 1 does not read");
    EXPECT_TRUE(WaitFor([&] { return begun.load(); }));
    self.engine->Interrupt(0);
    EXPECT_TRUE(WaitFor([&] { return ended.load(); }));
    Meet(self, "rank 0 has ended");
    Meet(self, "rank 1 has ended");
  });
}

// All that a rank announces reaches its peer, though its own collectives have
// ended, and the peer has room for a part of it only.
RING_TEST(AnnouncementsArriveThoughTheirRankHasNothingPending) {
  RankOptions setup = Setup(2, "auto");
  setup.collective_timeout_s = 10;
  RunRanks(setup, [&](Rank& self) {
    constexpr int kUses = 200;
    std::atomic<int> ended{0};
    std::vector<float> data(1 + self.rank, 1.0f);
    // A mismatch takes no more than the announcements of both.
    const auto submit = [&] {
      for (int use = 0; use < kUses; ++use) {
        const std::string name = StrCat(std::string(1000, 'n'), use);
        self.engine->Submit(Allreduce(name, data), [&](const Status& status) {
          EXPECT_EQ(status.code(), StatusCode::kRankMismatch)
              << status.message();
          ++ended;
        });
      }
    };
    const auto all_ended = [&] { return ended == kUses; };
    // More than a window holds: it ends when both have read the other's
    // announcement, and all before.
    std::vector<float> gate(1 << 20, 1.0f);
    if (self.rank == 1) {
      submit();
      self.engine->Submit(Allreduce("gate", gate), [&](const Status& status) {
        EXPECT_OK(status);
        Meet(self, "rank 1 does not read");
        Meet(self, "rank 0 has ended");
      });
      EXPECT_TRUE(WaitFor(all_ended)) << ended.load();
      Meet(self, "rank 1 has ended");
      return;
    }
    ASSERT_OK(self.engine->Run(Allreduce("gate", gate)));
    Meet(self, "rank 1 does not read");
    submit();
    EXPECT_TRUE(WaitFor(all_ended)) << ended.load();
    EXPECT_FALSE(self.engine->AwaitSent(0));
    Meet(self, "rank 0 has ended");
    EXPECT_TRUE(self.engine->AwaitSent(30));
    Meet(self, "rank 1 has ended");
  });
}

RING_TEST(AnInterruptEndsNothingThatIsEnteredLater) {
  RunRanks(Setup(2, "auto"), [&](Rank& self) {
    self.engine->Interrupt(Engine::kEveryCommunicator);
    std::vector<float> data(1, 1.0f);
    EXPECT_OK(self.engine->Run(Allreduce("first", data)));
    std::atomic<bool> ended{false};
    self.engine->Submit(Allreduce("second", data), [&](const Status& status) {
      EXPECT_OK(status);
      // It has not been counted as ended yet.
      self.engine->Interrupt(0);
      ended = true;
    });
    EXPECT_TRUE(WaitFor([&] { return ended.load(); }));
    EXPECT_OK(self.engine->Run(Allreduce("third", data)));
  });
}

// The store hears of dead ranks, not of dead links: rank 2 has only its peers'
// word that the other two cannot reach each other.
RING_TEST(ABrokenLinkIsToldToThirdRanks) {
  RankOptions setup = Setup(3, "tcp");
  setup.collective_timeout_s = 20;
  RunRanks(setup, [&](Rank& self) {
    Meet(self, "ready");
    if (self.rank == 0) {
      self.engine->WithDriver(
          [&] { self.engine->mesh().pair(1).CloseForWriting(); });
    }
    std::vector<float> data(100000, 1.0f);
    const Status status = self.engine->Run(Allreduce("data", data));
    EXPECT_EQ(status.code(), StatusCode::kPeerLost);
    EXPECT_TRUE(status.message().find("the connection between") !=
                std::string::npos)
        << "rank " << self.rank << ": " << status.message();
    Meet(self, "ended");
  });
}

// Keeps an engine from seeing anything while it lives.
class DriverHeld {
 public:
  explicit DriverHeld(Engine& engine) {
    thread_ = std::thread([this, &engine] {
      engine.WithDriver([this] {
        held_ = true;
        WaitFor([this] { return released_.load(); });
      });
    });
    WaitFor([this] { return held_.load(); });
  }
  ~DriverHeld() {
    released_ = true;
    thread_.join();
  }

 private:
  std::atomic<bool> held_{false};
  std::atomic<bool> released_{false};
  std::thread thread_;
};

// Rank 1 goes through a barrier and dies. Rank 0, which was there before and
// has been busy since, hears of that first, from the store or from rank 2, and
// then sees that all were there.
void LosesARankThatWasThrough(Rank& self, const char* told_by) {
  const auto barrier = [](const std::string& name) {
    Request request;
    request.kind = CollectiveKind::kBarrier;
    request.name = name;
    return request;
  };
  const RankEvent lost{RankEvent::Kind::kLost, 1, "rank 1 died"};
  for (int use = 0; use < 3; ++use) {
    ASSERT_OK(self.engine->Run(barrier("all are here")));
  }
  if (self.rank != 0) {
    Meet(self, "rank 0 is held");
    ASSERT_OK(self.engine->Run(barrier("all are here")));
    Meet(self, "all others are through");
    if (self.rank == 2) {
      self.engine->OnRankEvent(lost);
      EXPECT_EQ(self.engine->Run(barrier("next")).code(),
                StatusCode::kPeerLost);
      ASSERT_TRUE(self.engine->AwaitSent(30));
    }
    Meet(self, "rank 0 has been told");
    Meet(self, "rank 0 is through");
    return;
  }
  std::atomic<bool> ended{false};
  Status status;
  self.engine->Submit(barrier("all are here"), [&](const Status& outcome) {
    status = outcome;
    ended = true;
  });
  const auto has_posted = [&] {
    bool posted = false;
    self.engine->WithDriver([&] {
      const auto under_way = self.engine->UnderWay(/*with_missing=*/false);
      posted = under_way[0].record.arrived_at > 0;
    });
    return posted;
  };
  ASSERT_TRUE(WaitFor(has_posted));
  {
    const DriverHeld held(*self.engine);
    Meet(self, "rank 0 is held");
    Meet(self, "all others are through");
    if (std::string(told_by) == "store") self.engine->OnRankEvent(lost);
    Meet(self, "rank 0 has been told");
  }
  ASSERT_TRUE(WaitFor([&] { return ended.load(); }));
  EXPECT_OK(status);
  EXPECT_EQ(self.engine->Run(barrier("next")).code(), StatusCode::kPeerLost);
  Meet(self, "rank 0 is through");
}

RING_TEST(ALostRankTakesNothingBackThatItHadDone) {
  for (const char* told_by : {"store", "rank 2"}) {
    RunRanks(Setup(3, "auto"),
             [&](Rank& self) { LosesARankThatWasThrough(self, told_by); });
  }
  RunRanks(Setup(2, "tcp"),
           [](Rank& self) { LosesARankThatWasThrough(self, "store"); });
}

// Each waits for as long as the limit allows, but not while those before it
// move on.
RING_TEST(WhatIsQueuedGrowsNoOlder) {
  constexpr int kUses = 7;
  RankOptions setup = Setup(2, "tcp");
  setup.collective_timeout_s = 2;
  RunRanks(setup, [&](Rank& self) {
    std::vector<std::vector<float>> data(kUses, std::vector<float>(100, 1.0f));
    std::atomic<int> ended{0};
    std::atomic<int> failed{0};
    for (int use = 0; use < kUses; ++use) {
      // Later than the one before, and all together later than the limit.
      if (self.rank == 1) {
        std::this_thread::sleep_for(std::chrono::milliseconds(500));
      }
      self.engine->Submit(Allreduce("again", data[use]),
                          [&](const Status& status) {
                            failed += status.ok() ? 0 : 1;
                            ++ended;
                          });
    }
    ASSERT_TRUE(WaitFor([&] { return ended == kUses; })) << self.rank;
    EXPECT_EQ(failed.load(), 0);
  });
}

// Rank 0 waits in one collective, rank 1 in another: both are told both.
RING_TEST(TwoThatWaitForEachOtherAreBothNamed) {
  for (const char* transport : {"auto", "tcp"}) {
    RankOptions setup = Setup(2, transport);
    setup.collective_timeout_s = 1;
    RunRanks(setup, [&](Rank& self) {
      std::vector<float> data(100, 1.0f);
      Meet(self, "start");
      const Status status =
          self.engine->Run(Allreduce(self.rank == 0 ? "left" : "right", data));
      EXPECT_EQ(status.code(), StatusCode::kDeadlineExceeded);
      const std::string& text = status.message();
      const bool by_0 = text.find("'left': rank 0 gave up") != text.npos &&
                        text.find(
                            "Rank 1 waits in allreduce 'right', which "
                            "rank 0 has not entered.") != text.npos;
      const bool by_1 = text.find("'right': rank 1 gave up") != text.npos &&
                        text.find(
                            "Rank 0 waits in allreduce 'left', which "
                            "rank 1 has not entered.") != text.npos;
      EXPECT_TRUE(by_0 || by_1) << text;
      EXPECT_TRUE(text.find("They wait for each other") != text.npos) << text;
      EXPECT_TRUE(text.find("raise RING_KERAS") == text.npos) << text;
    });
  }
}

// A rank that is told that it is lost says so, as the others do.
RING_TEST(ARankThatWasGivenUpBlamesItself) {
  RunRanks(Setup(2, "auto"), [&](Rank& self) {
    std::vector<float> data(100, 1.0f);
    self.engine->OnRankEvent(
        {RankEvent::Kind::kLost, 1, "rank 1 has been silent"});
    // What has come of it already is still used.
    Status status;
    const Deadline deadline = Deadline::After(30);
    while (status.ok() && !deadline.Expired()) {
      status = self.engine->Run(Allreduce("again", data));
    }
    EXPECT_EQ(status.code(), StatusCode::kPeerLost);
    EXPECT_EQ(status.message(), "rank 1 has been silent");
  });
}

}  // namespace
}  // namespace ring_keras
