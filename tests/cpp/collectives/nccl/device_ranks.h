// Ranks as threads of one process, each with a device of the stand-in and a
// stream for compute.
#ifndef RING_KERAS_TESTS_COLLECTIVES_NCCL_DEVICE_RANKS_H_
#define RING_KERAS_TESTS_COLLECTIVES_NCCL_DEVICE_RANKS_H_

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/cpp/stand_in/support.h"
#include "tests/cpp/support/run_ranks.h"
#include "tests/cpp/support/test.h"
#include "tf_ops/common/deadline.h"
#include "tf_ops/cuda/library_paths.h"
#include "tf_ops/runtime/engine.h"

namespace ring_keras::testing {

struct DeviceRank {
  Rank& self;
  int rank;
  int size;
  void* stream;

  Engine& engine() const { return *self.engine; }

  // A request that begins after what the stream has been given.
  Request MakeRequest(CollectiveKind kind, const std::string& name,
                      DataType dtype) const {
    Request request;
    request.kind = kind;
    request.name = name;
    request.dtype = dtype;
    auto work = DeviceWork::After(rank, stream);
    EXPECT_OK(work);
    if (work.ok()) request.device_work = std::move(work.value());
    return request;
  }
};

inline void RunDeviceRanks(const RankOptions& options,
                           const std::function<void(DeviceRank&)>& body) {
  cuda::SetLibraryPath(RING_KERAS_STAND_IN_DIRECTORY);
  RunRanks(options, [&](Rank& self) {
    ASSERT_EQ(cudaSetDevice(self.rank), 0);
    const TestStream stream;
    DeviceRank rank{self, self.rank, self.size, stream.get()};
    body(rank);
    // What a failed collective left behind must not be in use any more.
    stream.Synchronize();
  });
}

inline RankOptions Ranks(int size, const char* transport = "auto") {
  RankOptions options;
  options.size = size;
  options.transport = transport;
  return options;
}

// A collective under way: what its caller is told.
class Submitted {
 public:
  Submitted(DeviceRank& rank, Request request) {
    request.launched = [this] {
      if (ended()) early_end_ = true;
      ++launches_;
    };
    rank.engine().Submit(std::move(request), [this](const Status& status) {
      status_ = status;
      ended_ = true;
    });
  }
  ~Submitted() {
    EXPECT_TRUE(WaitFor([this] { return ended(); }));
  }
  Submitted(const Submitted&) = delete;
  Submitted& operator=(const Submitted&) = delete;

  bool launched() const { return launches_ == 1; }
  bool ended() const { return ended_; }
  int launches() const { return launches_; }
  bool ended_before_launched() const { return early_end_; }
  // Waits for the end.
  Status Outcome() const {
    if (!WaitFor([this] { return ended(); })) {
      return Status(StatusCode::kInternal, "the collective does not end");
    }
    return status_;
  }

 private:
  std::atomic<int> launches_{0};
  std::atomic<bool> early_end_{false};
  Status status_;
  std::atomic<bool> ended_{false};
};

// An allreduce of one tensor, in place.
inline Request AllreduceInPlace(DeviceRank& rank, const std::string& name,
                                float* data, int64_t count) {
  Request request =
      rank.MakeRequest(CollectiveKind::kAllreduce, name, DataType::kFloat32);
  request.inputs = {{data, {count}}};
  request.outputs = {data};
  return request;
}

}  // namespace ring_keras::testing

#endif  // RING_KERAS_TESTS_COLLECTIVES_NCCL_DEVICE_RANKS_H_
