// What NCCL does not bear: different orders, dead peers, aborts.
#include <signal.h>

#include <array>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "tests/cpp/stand_in/nccl_support.h"

namespace ring_keras::testing {
namespace {

using namespace stand_in;

int Sum(const NcclRank& self, const DeviceArray<float>& values, size_t count) {
  return Settled(ncclAllReduce(values.get(), values.get(), count, kNcclFloat32,
                               kNcclSum, self.comm, self.stream),
                 self.comm);
}

RING_TEST(DifferentOrdersHangUntilAborted) {
  std::atomic<bool> both_hang = false;
  RunNcclRanks(
      2,
      [&](NcclRank& self) {
        DeviceArray<float> values(std::vector<float>(10, 1));
        // 5 before 10 here, 10 before 5 there.
        const size_t first = self.rank == 0 ? 5 : 10;
        EXPECT_EQ(Sum(self, values, first), 0);
        EXPECT_EQ(Sum(self, values, 15 - first), 0);
        testing::WaitFor(
            [&] { return RingKerasStandInHanging() == 2 || both_hang; });
        both_hang = true;
        EXPECT_EQ(cudaStreamQuery(self.stream), +kCudaNotReady);
        int state = -1;
        EXPECT_EQ(ncclCommGetAsyncError(self.comm, &state), 0);
        EXPECT_EQ(state, 0) << "NCCL does not notice";
        EXPECT_EQ(ncclCommAbort(self.comm), 0);
        EXPECT_EQ(cudaStreamSynchronize(self.stream), 0);
      },
      false);
}

RING_TEST(AnInitThatNobodyJoinsEndsByAbort) {
  NcclUniqueId id;
  ASSERT_EQ(ncclGetUniqueId(&id), 0);
  ncclComm* comm = Connect(id, 0, 2);
  float value = 0;
  EXPECT_EQ(
      ncclAllReduce(&value, &value, 1, kNcclFloat32, kNcclSum, comm, nullptr),
      kNcclInvalidArgument)
      << "it is in progress";
  EXPECT_EQ(ncclCommAbort(comm), 0);
}

RING_TEST(AFinalizeThatNobodyJoinsEndsByAbort) {
  RunNcclRanks(
      2,
      [](NcclRank& self) {
        if (self.rank == 0) {
          EXPECT_EQ(ncclCommFinalize(self.comm), +kNcclInProgress);
        }
        EXPECT_EQ(ncclCommAbort(self.comm), 0);
      },
      false);
}

RING_TEST(ASplitThatNobodyJoinsEndsByAbort) {
  RunNcclRanks(
      2,
      [](NcclRank& self) {
        ncclComm* part = nullptr;
        if (self.rank == 0) {
          EXPECT_EQ(ncclCommSplit(self.comm, 0, 0, &part, nullptr),
                    +kNcclInProgress);
        }
        EXPECT_EQ(ncclCommAbort(self.comm), 0);
        EXPECT_TRUE(part == nullptr);
      },
      false);
}

RING_TEST(TwoRanksOnOneDeviceAreRefused) {
  NcclUniqueId id;
  ASSERT_EQ(ncclGetUniqueId(&id), 0);
  std::array<ncclComm*, 2> comms = {Connect(id, 0, 2), Connect(id, 1, 2)};
  for (ncclComm* comm : comms) {
    EXPECT_EQ(Settled(comm), +kNcclInvalidUsage);
    EXPECT_TRUE(std::strstr(ncclGetLastError(comm), "Duplicate GPU") !=
                nullptr);
    EXPECT_EQ(ncclCommDestroy(comm), +kNcclInvalidUsage);
    EXPECT_EQ(ncclCommAbort(comm), 0);
  }
}

RING_TEST(AStreamOfAnotherDeviceIsRefused) {
  RunNcclRanks(
      1,
      [](NcclRank& self) {
        EXPECT_EQ(cudaSetDevice(1), 0);
        TestStream elsewhere;
        EXPECT_EQ(cudaSetDevice(0), 0);
        DeviceArray<float> values(std::vector<float>{1});
        EXPECT_EQ(ncclAllReduce(values.get(), values.get(), 1, kNcclFloat32,
                                kNcclSum, self.comm, elsewhere.get()),
                  +kNcclUnhandledCudaError);
        EXPECT_EQ(ncclCommAbort(self.comm), 0);
      },
      false);
}

RING_TEST(AnErrorThatATestAsksFor) {
  RunNcclRanks(
      1,
      [](NcclRank& self) {
        RingKerasStandInFailCommunicators(kNcclRemoteError);
        EXPECT_EQ(Settled(self.comm), +kNcclRemoteError);
        DeviceArray<float> values(std::vector<float>{1});
        EXPECT_EQ(Sum(self, values, 1), +kNcclRemoteError);
        EXPECT_EQ(ncclCommAbort(self.comm), 0);
      },
      false);
}

// Two processes: this one is rank 0. The id travels as hexadecimal digits.

std::string ToText(const NcclUniqueId& id) {
  std::string text;
  for (const char byte : id.bytes) {
    constexpr char kDigits[] = "0123456789abcdef";
    text += kDigits[static_cast<unsigned char>(byte) >> 4];
    text += kDigits[byte & 15];
  }
  return text;
}

NcclUniqueId ToId(const std::string& text) {
  NcclUniqueId id;
  for (size_t i = 0; i < sizeof(id.bytes); ++i) {
    id.bytes[i] = static_cast<char>(
        std::strtol(text.substr(2 * i, 2).c_str(), nullptr, 16));
  }
  return id;
}

// Rank 1: takes part in one sum, then waits for a signal that kills it, or not.
void BeRankOne(bool dies) {
  ASSERT_EQ(cudaSetDevice(1), 0);
  TestStream stream;
  NcclRank self{1, 2, Connect(ToId(SpawnedWith()), 1, 2), stream.get()};
  ASSERT_EQ(Settled(self.comm), 0);
  DeviceArray<float> values(std::vector<float>(100'000, 2));
  EXPECT_EQ(Sum(self, values, 100'000), 0);
  stream.Synchronize();
  EXPECT_EQ(values.Read()[99'999], 3.0f);
  if (dies) kill(getpid(), SIGKILL);
  Leave(self.comm);
}

RING_TEST(SpawnedRankThatLeaves) {
  if (IsSpawned()) BeRankOne(false);
}

RING_TEST(SpawnedRankThatDies) {
  if (IsSpawned()) BeRankOne(true);
}

void SumWithSpawned(const char* test,
                    const std::function<void(NcclRank&)>& after) {
  NcclUniqueId id;
  ASSERT_EQ(ncclGetUniqueId(&id), 0);
  const pid_t child = Spawn(test, ToText(id));
  TestStream stream;
  NcclRank self{0, 2, Connect(id, 0, 2), stream.get()};
  ASSERT_EQ(Settled(self.comm), 0);
  DeviceArray<float> values(std::vector<float>(100'000, 1));
  EXPECT_EQ(Sum(self, values, 100'000), 0);
  stream.Synchronize();
  EXPECT_EQ(values.Read()[99'999], 3.0f);
  after(self);
  Ended(child);
}

RING_TEST(TwoProcesses) {
  SumWithSpawned("SpawnedRankThatLeaves",
                 [](NcclRank& self) { Leave(self.comm); });
}

RING_TEST(AKilledPeerIsAHangUntilAborted) {
  SumWithSpawned("SpawnedRankThatDies", [](NcclRank& self) {
    DeviceArray<float> values(std::vector<float>{1});
    EXPECT_EQ(Sum(self, values, 1), 0);
    EXPECT_EQ(cudaStreamQuery(self.stream), +kCudaNotReady);
    EXPECT_EQ(Settled(self.comm), 0);
    EXPECT_EQ(ncclCommAbort(self.comm), 0);
    EXPECT_EQ(cudaStreamSynchronize(self.stream), 0);
  });
}

RING_TEST(SpawnedThatNoticesAKilledPeer) {
  if (!IsSpawned()) return;
  SumWithSpawned("SpawnedRankThatDies", [](NcclRank& self) {
    DeviceArray<float> values(std::vector<float>{1});
    Sum(self, values, 1);
    int state = 0;
    while (state == 0) ncclCommGetAsyncError(self.comm, &state);
    EXPECT_EQ(state, +kNcclRemoteError);
    EXPECT_EQ(cudaStreamQuery(self.stream), +kCudaNotReady);
    EXPECT_EQ(ncclCommAbort(self.comm), 0);
  });
}

RING_TEST(AKilledPeerIsAnErrorWhereAsked) {
  const int status = Ended(Spawn("SpawnedThatNoticesAKilledPeer", "none",
                                 {"STAND_IN_DEAD_PEER=error"}));
  EXPECT_EQ(status, 0);
}

}  // namespace
}  // namespace ring_keras::testing
