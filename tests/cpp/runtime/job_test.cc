// What every rank of a job makes, every rank has.
#include "tf_ops/runtime/job.h"

#include <array>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tests/cpp/support/test.h"
#include "tf_ops/rendezvous/tcp_store_server.h"

namespace ring_keras {
namespace {

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

// What a rank sends for a process set from then on must not come too early for
// any other.
RING_TEST(AProcessSetIsThereOnEveryRankOnceAnyIsTold) {
  constexpr int kSize = 2;
  const std::string token(32, 't');
  TcpStoreServerOptions options;
  options.size = kSize;
  options.token = token;
  auto server = TcpStoreServer::Start(options);
  ASSERT_OK(server.status());
  std::array<std::unique_ptr<Job>, kSize> jobs;
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < kSize; ++rank) {
    ranks.emplace_back([&, rank] {
      jobs[rank] = StartJob(rank, kSize, server.value()->port(), token);
    });
  }
  for (std::thread& thread : ranks) thread.join();
  ASSERT_TRUE(jobs[0] != nullptr && jobs[1] != nullptr);
  ranks.clear();
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

}  // namespace
}  // namespace ring_keras
