// What every rank of a job makes, every rank has; and how one leaves.
#include "tf_ops/runtime/job.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <latch>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/cpp/support/test.h"
#include "tf_ops/rendezvous/tcp_store_server.h"

namespace ring_keras {
namespace {

using testing::Has;
using testing::WaitFor;

std::unique_ptr<Job> StartJob(int rank, int size, int store_port,
                              const std::string& token) {
  InitOptions init;
  init.rank = rank;
  init.size = size;
  init.store_host = "127.0.0.1";
  init.store_port = store_port;
  init.token = token;
  init.init_timeout_s = 60;
  init.collective_timeout_s = 30;
  auto job = Job::Start(init);
  EXPECT_OK(job);
  return job.ok() ? std::move(job.value()) : nullptr;
}

// All ranks of a job, and its store.
template <int kSize>
struct WholeJob {
  WholeJob() {
    const std::string token(32, 't');
    TcpStoreServerOptions options;
    options.size = kSize;
    options.token = token;
    auto started = TcpStoreServer::Start(options);
    EXPECT_OK(started.status());
    if (!started.ok()) return;
    store = std::move(started.value());
    std::vector<std::thread> ranks;
    for (int rank = 0; rank < kSize; ++rank) {
      ranks.emplace_back([&, rank] {
        jobs[rank] = StartJob(rank, kSize, store->port(), token);
      });
    }
    for (std::thread& thread : ranks) thread.join();
  }

  bool is_whole() const {
    return std::all_of(jobs.begin(), jobs.end(),
                       [](const auto& job) { return job != nullptr; });
  }

  std::unique_ptr<TcpStoreServer> store;
  std::array<std::unique_ptr<Job>, kSize> jobs;
};

// What a rank sends for a process set from then on must not come too early for
// any other.
RING_TEST(AProcessSetIsThereOnEveryRankOnceAnyIsTold) {
  constexpr int kSize = 2;
  WholeJob<kSize> whole;
  ASSERT_TRUE(whole.is_whole());
  auto& jobs = whole.jobs;
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < kSize; ++rank) {
    ranks.emplace_back([&, rank] {
      for (int round = 0; round < 100; ++round) {
        const StatusOr<int> id = jobs[rank]->AddCommunicator({0});
        ASSERT_OK(id);
        ASSERT_OK(jobs[1 - rank]->CommunicatorRanks(id.value())) << round;
        ASSERT_OK(jobs[rank]->RemoveCommunicator(id.value()));
      }
      jobs[rank]->Leave("done");
    });
  }
  for (std::thread& thread : ranks) thread.join();
}

// A collective of one rank's that has not ended.
struct Pending {
  Pending(Job& job, const std::string& name) {
    Request barrier;
    barrier.name = name;
    job.engine().Submit(std::move(barrier), [this](const Status& status) {
      outcome = status;
      ended = true;
    });
  }

  Status outcome;  // Once it has ended.
  std::atomic<bool> ended{false};
};

// Rank 0 shuts down while a collective is pending. Rank 2, which is not in it,
// leaves because of that, and rank 1 waits for rank 2 alone.
RING_TEST(WhyARankLeavesIsHeardBeforeWhatItBringsAbout) {
  WholeJob<3> whole;
  ASSERT_TRUE(whole.is_whole());
  Engine& first = whole.jobs[0]->engine();
  Pending own(*whole.jobs[0], "pending");
  Pending waits(*whole.jobs[1], "pending");
  Pending other(*whole.jobs[2], "something else");
  EXPECT_TRUE(WaitFor([&] {
    std::vector<int> missing;
    Engine& engine = whole.jobs[1]->engine();
    engine.WithDriver([&] {
      for (const auto& one : engine.UnderWay(/*with_missing=*/true)) {
        missing = one.missing;
      }
    });
    return missing == std::vector<int>{2};
  }));
  // It comes to nothing for as long as it likes.
  std::latch is_held(1);
  std::latch let_go(1);
  std::thread holder([&] {
    first.WithDriver([&] {
      is_held.count_down();
      let_go.wait();
    });
  });
  is_held.wait();
  std::thread leaver([&] { whole.jobs[0]->Leave("has seen enough"); });
  const auto takes_nothing = [&first] {
    Request request;
    request.communicator_id = 99;  // There is none.
    Status refused;
    first.Submit(std::move(request),
                 [&refused](const Status& status) { refused = status; });
    return refused.code() == StatusCode::kAborted;
  };
  EXPECT_TRUE(WaitFor(takes_nothing));
  EXPECT_TRUE(whole.store->ended_ranks().empty());
  let_go.count_down();
  EXPECT_TRUE(WaitFor([&] { return other.ended.load(); }));
  whole.jobs[2]->Leave("its script ended");
  holder.join();
  leaver.join();
  for (const Pending* one : {&own, &waits, &other}) {
    ASSERT_TRUE(WaitFor([&] { return one->ended.load(); }));
    EXPECT_TRUE(Has(one->outcome.message(), "rank 0 ("))
        << one->outcome.message();
  }
}

}  // namespace
}  // namespace ring_keras
