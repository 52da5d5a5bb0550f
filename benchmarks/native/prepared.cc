// How long a prepared allreduce between two processes takes without Python:
// ranks that share memory, each on a core of its own.
//
//   prepared_benchmark BYTES ...
//
// Prints two lines for each size, of memory of a rank's own and of shared
// buffers: nanoseconds of a call on rank 0, in the best round and in the median
// one, and the same of a request that is not prepared.
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "tf_ops/rendezvous/tcp_store_server.h"
#include "tf_ops/runtime/repeated_call.h"
#include "tf_ops/runtime/runtime.h"

namespace ring_keras {
namespace {

constexpr int kRanks = 2;
constexpr int kRounds = 100;
constexpr int kCalls = 1000;
constexpr unsigned kLimitS = 120;

void Check(const Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "%s\n", status.message().c_str());
  std::_Exit(1);
}

template <typename Call>
std::vector<double> Measure(Call call) {
  std::vector<double> nanoseconds;
  for (int round = 0; round < kRounds; ++round) {
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < kCalls; ++i) Check(call());
    const std::chrono::duration<double, std::nano> took =
        std::chrono::steady_clock::now() - start;
    nanoseconds.push_back(took.count() / kCalls);
  }
  std::sort(nanoseconds.begin(), nanoseconds.end());
  return nanoseconds;
}

void RunRank(int rank, int port, const std::string& token,
             const std::vector<size_t>& sizes) {
  cpu_set_t core;
  CPU_ZERO(&core);
  CPU_SET(rank, &core);
  if (sched_setaffinity(0, sizeof(core), &core) != 0) {
    std::fprintf(stderr, "rank %d has no core of its own\n", rank);
  }
  InitOptions options;
  options.rank = rank;
  options.size = kRanks;
  options.store_host = "127.0.0.1";
  options.store_port = port;
  options.token = token;
  options.host_name = "host";
  Runtime& runtime = Runtime::Get();
  Check(runtime.Init(options));
  for (size_t nbytes : sizes) {
    auto buffer = runtime.AllocateBuffer(nbytes);
    Check(buffer.status());
    std::vector<float> own(nbytes / sizeof(float));
    for (const bool shared : {false, true}) {
      void* data = shared ? buffer.value().get() : own.data();
      Request request;
      request.kind = CollectiveKind::kAllreduce;
      request.name = StrCat(shared ? "shared " : "private ", nbytes);
      request.dtype = DataType::kFloat32;
      request.reduce_op = ReduceOp::kMax;
      request.inputs = {{data, {static_cast<int64_t>(own.size())}}};
      request.outputs = {data};
      RepeatedCall prepared(request);
      const auto calls = Measure([&] { return runtime.Run(prepared, [] {}); });
      const auto requests = Measure([&] { return runtime.Run(request); });
      if (rank != 0) continue;
      std::printf(
          "%s bytes: prepared %.0f ns (best), %.0f (median); "
          "by a request %.0f, %.0f\n",
          request.name.c_str(), calls.front(), calls[kRounds / 2],
          requests.front(), requests[kRounds / 2]);
    }
  }
  runtime.Shutdown("measured");
}

int Main(const std::vector<size_t>& sizes) {
  alarm(kLimitS);
  TcpStoreServerOptions options;
  options.size = kRanks;
  options.token = std::string(32, 't');
  auto server = TcpStoreServer::Start(options);
  Check(server.status());
  std::vector<pid_t> ranks;
  for (int rank = 0; rank < kRanks; ++rank) {
    const pid_t child = fork();
    if (child == 0) {
      RunRank(rank, server.value()->port(), options.token, sizes);
      std::fflush(stdout);
      std::_Exit(0);
    }
    ranks.push_back(child);
  }
  int failed = 0;
  for (pid_t rank : ranks) {
    int status = 0;
    waitpid(rank, &status, 0);
    failed += status != 0;
  }
  return failed;
}

}  // namespace
}  // namespace ring_keras

int main(int argc, char** argv) {
  std::vector<size_t> sizes;
  for (int i = 1; i < argc; ++i)
    sizes.push_back(std::strtoul(argv[i], nullptr, 10));
  return ring_keras::Main(sizes);
}
