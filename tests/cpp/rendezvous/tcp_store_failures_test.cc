// The store as arbiter: ranks that die, fall silent, or lose the store.
#include <poll.h>

#include <algorithm>
#include <chrono>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tests/cpp/rendezvous/store_test_support.h"
#include "tests/cpp/support/test.h"
#include "tf_ops/rendezvous/limits.h"
#include "tf_ops/rendezvous/tcp_store.h"
#include "tf_ops/rendezvous/tcp_store_server.h"

namespace ring_keras {
namespace {

using rendezvous::FrameType;

RING_TEST(AClosedConnectionIsADeath) {
  const auto server = StartServer(3);
  const auto first = Join(*server, 0);
  const auto second = Join(*server, 1);
  EventLog first_log, second_log;
  first->Watch(first_log.Watcher());
  second->Watch(second_log.Watcher());
  auto parked = std::async(std::launch::async,
                           [&] { return first->Gather("never", "", Soon()); });
  RawConnection::AsRank(*server, 2).Close();

  const std::string expected =
      "rank 2 (host node7, pid 4711) died: its connection to the store closed "
      "before it had left the job";
  for (EventLog* log : {&first_log, &second_log}) {
    const RankEvent event = log->WaitFor(1)[0];
    EXPECT_EQ(event.kind, RankEvent::Kind::kLost);
    EXPECT_EQ(event.rank, 2);
    EXPECT_EQ(event.description, expected);
  }
  const Status status = parked.get().status();
  EXPECT_EQ(status.code(), StatusCode::kPeerLost);
  EXPECT_TRUE(status.message().rfind(expected, 0) == 0) << status.message();
  ASSERT_EQ(server->ended_ranks().size(), 1);
  EXPECT_EQ(server->ended_ranks()[0].description, expected);
}

RING_TEST(TheLaunchersWordReachesTheOthers) {
  const auto server = StartServer(2);
  const auto store = Join(*server, 0);
  EventLog log;
  store->Watch(log.Watcher());
  RawConnection dying = RawConnection::AsRank(*server, 1);
  EXPECT_OK(server->ReportExit(1, "was killed by SIGKILL"));
  dying.Close();
  EXPECT_EQ(log.WaitFor(1)[0].description,
            "rank 1 (host node7, pid 4711) was killed by SIGKILL");
}

RING_TEST(AnExitCountsThoughAChildHoldsTheConnection) {
  const auto server = StartServer(2);
  const auto store = Join(*server, 0);
  EventLog log;
  store->Watch(log.Watcher());
  RawConnection held = RawConnection::AsRank(*server, 1);
  EXPECT_OK(server->ReportExit(1, "exited with code 3"));
  EXPECT_EQ(log.WaitFor(1)[0].description,
            "rank 1 (host node7, pid 4711) exited with code 3");
  held.ReadUntilClosed();
}

RING_TEST(AnExitBeforeJoiningEndsTheWaitAtOnce) {
  const auto server = StartServer(2);
  const auto store = Join(*server, 0);
  auto parked = std::async(std::launch::async,
                           [&] { return store->Gather("cards", "", Soon()); });
  EXPECT_OK(server->ReportExit(1, "exited with code 1"));
  const Status status = parked.get().status();
  EXPECT_EQ(status.code(), StatusCode::kPeerLost);
  EXPECT_TRUE(
      Has(status.message(), "rank 1 exited with code 1 before it joined"))
      << status.message();
  EXPECT_EQ(server->ReportExit(2, "exited with code 1").code(),
            StatusCode::kInvalidArgument);
}

RING_TEST(ASilentRankIsLostAndTheOthersAreNot) {
  const auto server = StartServer(2, [](TcpStoreServerOptions& options) {
    options.heartbeat_timeout_s = 1;
  });
  const auto store = Join(*server, 0);
  EventLog log;
  store->Watch(log.Watcher());
  RawConnection silent = RawConnection::AsRank(*server, 1);
  const std::string expected =
      "rank 1 (host node7, pid 4711) has been silent for 1 s "
      "(RING_KERAS_HEARTBEAT_TIMEOUT_S): stopped, swapped out, or cut off";
  EXPECT_EQ(log.WaitFor(1)[0].description, expected);
  // It learns why, in case that it wakes up.
  EXPECT_EQ(silent.ReadFrame(FrameType::kEvent).payload, expected);
  silent.ReadUntilClosed();
  ExpectAnswered(*store);
}

// It is cut off itself then.
RING_TEST(AStoreThatHearsNobodyIsPatient) {
  const auto server = StartServer(2, [](TcpStoreServerOptions& options) {
    options.heartbeat_timeout_s = 0.4;
    options.all_silent_timeout_s = 1.6;
  });
  std::vector<RawConnection> silent;
  for (int rank : {0, 1}) {
    silent.push_back(RawConnection::AsRank(*server, rank));
  }
  for (RawConnection& rank : silent) {
    EXPECT_TRUE(
        Has(rank.ReadFrame(FrameType::kEvent).payload, "silent for 1.6 s"));
  }
}

// As long as it was cut off, and as long again: TCP may not have tried before.
RING_TEST(WhenItHearsOneAgainTheOthersHaveMoreTime) {
  const auto server = StartServer(2, [](TcpStoreServerOptions& options) {
    options.heartbeat_timeout_s = 1;
    options.all_silent_timeout_s = 60;
  });
  RawConnection heard = RawConnection::AsRank(*server, 0);
  RawConnection silent = RawConnection::AsRank(*server, 1);
  std::this_thread::sleep_for(std::chrono::seconds(2));
  const Deadline pinging = Soon();
  const auto has_said_something = [&heard] {
    return WaitUntilReady(heard.fd(), POLLIN, Deadline::After(0.05)).value();
  };
  while (!has_said_something() && !pinging.Expired()) {
    heard.Send({FrameType::kPing, 0, 0, "", ""});
  }
  const std::string why = heard.ReadFrame(FrameType::kEvent).payload;
  const std::string words = "has been silent for ";
  ASSERT_TRUE(Has(why, words)) << why;
  // 1 s, and twice the 1.5 s in which nobody was heard.
  const double limit_s = std::stod(why.substr(why.find(words) + words.size()));
  EXPECT_TRUE(limit_s >= 3.5 && limit_s < 10) << why;
  EXPECT_EQ(silent.ReadFrame(FrameType::kEvent).payload, why);
}

// What the rank says is not read while so much waits for it.
RING_TEST(ARankThatTakesALargeAnswerSlowlyIsNotSilent) {
  constexpr int kSize = 16;
  const auto server = StartServer(kSize, [](TcpStoreServerOptions& options) {
    options.heartbeat_timeout_s = 3;  // This thread may be held up, too.
  });
  std::vector<RawConnection> ranks;
  for (int rank = 0; rank < kSize; ++rank) {
    ranks.push_back(RawConnection::AsRank(*server, rank));
  }
  // The system takes part of the answer; it is to be little.
  constexpr int kBufferBytes = 1 << 16;
  ASSERT_EQ(setsockopt(ranks[0].fd(), SOL_SOCKET, SO_RCVBUF, &kBufferBytes,
                       sizeof(kBufferBytes)),
            0);
  for (int rank = 0; rank < kSize; ++rank) {
    ranks[rank].Send({FrameType::kGather, 1, 0, "large",
                      std::string(kMaxValueBytes, 'a' + rank)});
  }
  // Longer than that, at 64 KiB each 20 ms at most.
  constexpr size_t kSlowBytes = size_t{10} << 20;
  constexpr size_t kAllBytes = kSize * kMaxValueBytes;
  std::string bytes(kReadBytes, ' ');
  for (size_t taken = 0; taken < kAllBytes;) {
    for (int rank = 0; rank < kSize; ++rank) {
      ranks[rank].Send({FrameType::kPing, 0, 0, "", ""});
      const auto take = [&] {
        return recv(ranks[rank].fd(), bytes.data(), bytes.size(), MSG_DONTWAIT);
      };
      if (rank > 0) {
        while (take() > 0) {
        }
        continue;
      }
      const ssize_t got = take();
      ASSERT_TRUE(got != 0) << "closed after " << taken << " bytes";
      if (got > 0) taken += static_cast<size_t>(got);
    }
    if (taken < kSlowBytes) {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
  }
  EXPECT_TRUE(server->ended_ranks().empty());
}

RING_TEST(ARankThatIsGivenUpLearnsWhy) {
  const auto server = StartServer(1);
  const auto store = Join(*server, 0);
  EventLog log;
  store->Watch(log.Watcher());
  EXPECT_OK(server->ReportExit(0, "exited with code 0"));
  // As the others are told.
  const RankEvent event = log.WaitFor(1)[0];
  EXPECT_EQ(event.rank, 0);
  EXPECT_TRUE(Has(event.description, "rank 0 (host node7"))
      << event.description;
  const std::string said = store->Pause(Soon()).message();
  EXPECT_TRUE(Has(said, event.description)) << said;
}

RING_TEST(AVanishedStoreFailsWhoWaitsAndTellsTheWatcher) {
  auto server = StartServer(2);
  const auto store = Join(*server, 0);
  const std::string expected = StrCat("the store at 127.0.0.1:", server->port(),
                                      " is gone: the launcher ended");
  EventLog log;
  store->Watch(log.Watcher());
  auto parked = std::async(std::launch::async,
                           [&] { return store->Gather("never", "", Soon()); });
  server.reset();

  const RankEvent event = log.WaitFor(1)[0];
  EXPECT_EQ(event.kind, RankEvent::Kind::kLost);
  EXPECT_EQ(event.rank, -1);
  EXPECT_TRUE(Has(event.description, expected)) << event.description;
  const Status status = parked.get().status();
  EXPECT_EQ(status.code(), StatusCode::kPeerLost);
  EXPECT_TRUE(Has(status.message(), expected)) << status.message();
  EXPECT_EQ(store->Gather("late", "", Soon()).status().message(),
            status.message());
  // Leaving a store that is gone returns at once.
  store->Leave("late");
}

RING_TEST(AClosedServerStillTellsWhatItKnew) {
  const auto server = StartServer(2);
  const auto store = Join(*server, 0);
  EventLog log;
  store->Watch(log.Watcher());
  EXPECT_OK(server->ReportExit(1, "exited with code 1"));
  log.WaitFor(1);
  const int port = server->port();
  server->Close();
  server->Close();
  EXPECT_EQ(server->ended_ranks().size(), 1);
  EXPECT_EQ(server->port(), port);
  EXPECT_OK(server->ReportExit(0, "exited with code 0"));
}

RING_TEST(ClosingWaitsForNoGraceButJudges) {
  const auto server = StartServer(3);
  RawConnection closed = RawConnection::AsRank(*server, 0);
  RawConnection held = RawConnection::AsRank(*server, 1);
  closed.Close();
  EXPECT_OK(server->ReportExit(1, "was killed by SIGKILL"));
  EXPECT_OK(server->ReportExit(2, "exited with code 1"));
  server->Close();
  std::vector<RankEvent> ended = server->ended_ranks();
  ASSERT_EQ(ended.size(), 3);
  std::sort(ended.begin(), ended.end(),
            [](const auto& a, const auto& b) { return a.rank < b.rank; });
  EXPECT_TRUE(Has(ended[0].description, "before it had left"));
  EXPECT_TRUE(Has(ended[1].description, "was killed by SIGKILL"));
  EXPECT_TRUE(Has(ended[2].description, "exited with code 1"));
}

RING_TEST(AWatcherMayLeave) {
  const auto server = StartServer(2);
  const auto store = Join(*server, 0);
  EventLog log;
  store->Watch([&store, tell = log.Watcher()](const RankEvent& event) {
    store->Leave("a peer is lost");
    EXPECT_EQ(store->Gather("topic", "", Soon()).status().code(),
              StatusCode::kInternal);
    tell(event);
  });
  RawConnection other = RawConnection::AsRank(*server, 1);
  EXPECT_OK(server->ReportExit(1, "exited with code 1"));
  log.WaitFor(1);
}

RING_TEST(LeavingAbortsOnesOwnWaits) {
  const auto server = StartServer(2);
  const auto store = Join(*server, 0);
  auto parked = std::async(std::launch::async,
                           [&] { return store->Gather("never", "", Soon()); });
  store->Leave("shutdown");
  EXPECT_EQ(parked.get().status().code(), StatusCode::kAborted);
}

}  // namespace
}  // namespace ring_keras
