// Ranks of a NCCL communicator, for the tests of the stand-in.
#ifndef RING_KERAS_TESTS_CPP_STAND_IN_NCCL_SUPPORT_H_
#define RING_KERAS_TESTS_CPP_STAND_IN_NCCL_SUPPORT_H_

#include <chrono>
#include <functional>
#include <thread>
#include <vector>

#include "tests/cpp/stand_in/support.h"
#include "tests/stand_in/nccl_abi.h"

namespace ring_keras::testing {

// One rank: a communicator that does not block, and a stream.
struct NcclRank {
  int rank = 0;
  int size = 0;
  ncclComm* comm = nullptr;
  void* stream = nullptr;
};

// What the communicator says when it is no longer in progress.
inline int Settled(ncclComm* comm) {
  int state = stand_in::kNcclInProgress;
  while (true) {
    EXPECT_EQ(ncclCommGetAsyncError(comm, &state), 0);
    if (state != stand_in::kNcclInProgress) return state;
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
}

// A call's result, or what comes of it if that is not known yet.
inline int Settled(int result, ncclComm* comm) {
  return result == stand_in::kNcclInProgress ? Settled(comm) : result;
}

inline ncclComm* Connect(const stand_in::NcclUniqueId& id, int rank, int size) {
  stand_in::NcclConfig config;
  config.blocking = 0;
  ncclComm* comm = nullptr;
  const int result = ncclCommInitRankConfig(&comm, size, id, rank, &config);
  EXPECT_EQ(result, +stand_in::kNcclInProgress);
  return comm;
}

inline void Leave(ncclComm* comm) {
  EXPECT_EQ(Settled(ncclCommFinalize(comm), comm), 0);
  EXPECT_EQ(ncclCommDestroy(comm), 0);
}

// Runs `body` on `size` threads, rank r on device r.
inline void RunNcclRanks(int size, const std::function<void(NcclRank&)>& body,
                         bool leaves = true) {
  stand_in::NcclUniqueId id;
  ASSERT_EQ(ncclGetUniqueId(&id), 0);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      ASSERT_EQ(cudaSetDevice(rank), 0);
      TestStream stream;
      NcclRank self{rank, size, Connect(id, rank, size), stream.get()};
      ASSERT_EQ(Settled(self.comm), 0);
      body(self);
      if (leaves) Leave(self.comm);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace ring_keras::testing

#endif  // RING_KERAS_TESTS_CPP_STAND_IN_NCCL_SUPPORT_H_
