// Ranks of a job as threads of one process: each has its own engine, its own
// connections and its own shared memory, found through a real store.
#ifndef RING_KERAS_TESTS_SUPPORT_RUN_RANKS_H_
#define RING_KERAS_TESTS_SUPPORT_RUN_RANKS_H_

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tests/cpp/support/test.h"
#include "tf_ops/rendezvous/tcp_store_server.h"
#include "tf_ops/runtime/bootstrap.h"
#include "tf_ops/runtime/engine.h"

namespace ring_keras::testing {

struct RankOptions {
  int size = 2;
  std::string transport = "auto";
  // Hosts that the ranks pretend to be on, round-robin.
  int hosts = 1;
  double collective_timeout_s = 60;
  double stall_warning_s = 30;
  double heartbeat_timeout_s = 5;
  // A rank that shares memory with none; -1: no such rank.
  int tcp_rank = -1;
  // See EngineOptions.
  std::string trace_dir = "";
  // See InitOptions.
  int max_direct_peers = InitOptions().max_direct_peers;
  bool encrypts = false;
  Tuning tuning = {};
};

struct Rank {
  int rank = 0;
  int size = 0;
  Store* store = nullptr;
  Engine* engine = nullptr;
  const Membership* membership = nullptr;
};

// Takes `data` and leaves there what comes out.
inline Request FloatRequest(CollectiveKind kind, const std::string& name,
                            std::vector<float>& data) {
  Request request;
  request.kind = kind;
  request.name = name;
  request.dtype = DataType::kFloat32;
  request.inputs = {{data.data(), {static_cast<int64_t>(data.size())}}};
  request.outputs = {data.data()};
  return request;
}

inline Request Allreduce(const std::string& name, std::vector<float>& data,
                         ReduceOp op = ReduceOp::kSum) {
  Request request = FloatRequest(CollectiveKind::kAllreduce, name, data);
  request.reduce_op = op;
  return request;
}

// Runs `body` once per rank, all at the same time; returns when all are done.
inline void RunRanks(const RankOptions& options,
                     const std::function<void(Rank&)>& body) {
  const std::string token(32, 't');
  TcpStoreServerOptions server_options;
  server_options.size = options.size;
  server_options.token = token;
  server_options.encrypts = options.encrypts;
  server_options.heartbeat_timeout_s = options.heartbeat_timeout_s;
  auto server = TcpStoreServer::Start(server_options);
  ASSERT_OK(server.status());
  std::vector<std::thread> threads;
  for (int rank = 0; rank < options.size; ++rank) {
    threads.emplace_back([&, rank] {
      InitOptions init;
      init.rank = rank;
      init.size = options.size;
      init.store_host = "127.0.0.1";
      init.store_port = server.value()->port();
      init.token = token;
      init.encrypts = options.encrypts;
      init.transport = rank == options.tcp_rank ? "tcp" : options.transport;
      init.host_name = StrCat("host", rank % options.hosts);
      init.init_timeout_s = 60;
      init.heartbeat_timeout_s = options.heartbeat_timeout_s;
      init.max_direct_peers = options.max_direct_peers;
      init.tuning = options.tuning;
      auto membership = Bootstrap(init);
      ASSERT_OK(membership.status());
      EngineOptions engine_options;
      engine_options.collective_timeout_s = options.collective_timeout_s;
      engine_options.stall_warning_s = options.stall_warning_s;
      engine_options.trace_dir = options.trace_dir;
      engine_options.rank_names = membership.value().rank_names;
      auto engine = std::make_unique<Engine>(
          engine_options, std::move(membership.value().mesh));
      std::vector<int> everyone;
      for (int other = 0; other < options.size; ++other) {
        everyone.push_back(other);
      }
      engine->AddCommunicator(0, everyone, options.tuning);
      Store* store = membership.value().store.get();
      if (store != nullptr) {
        store->Watch(
            [&](const RankEvent& event) { engine->OnRankEvent(event); });
      }
      Rank self{rank, options.size, store, engine.get(), &membership.value()};
      body(self);
      if (store != nullptr) store->Leave("done");
      membership.value().store.reset();
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace ring_keras::testing

#endif  // RING_KERAS_TESTS_SUPPORT_RUN_RANKS_H_
