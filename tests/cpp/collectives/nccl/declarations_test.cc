// Our declarations of NCCL's functions, compared with NVIDIA's own. That this
// file compiles is the test.
#include <nccl.h>

#include <cstddef>

#include "tests/cpp/support/same_abi.h"
#include "tests/cpp/support/test.h"
#include "tf_ops/collectives/nccl/nccl_api.h"

namespace ring_keras::testing {
namespace {

#define CHECK_NCCL(name)                                                     \
  static_assert(SameAbi<decltype(nccl::Api::name), decltype(&nccl##name)>(), \
                "nccl" #name)

CHECK_NCCL(GetVersion);
CHECK_NCCL(GetUniqueId);
CHECK_NCCL(CommInitRankConfig);
CHECK_NCCL(CommSplit);
CHECK_NCCL(CommGetAsyncError);
CHECK_NCCL(CommAbort);
CHECK_NCCL(CommFinalize);
CHECK_NCCL(CommDestroy);
CHECK_NCCL(AllReduce);
CHECK_NCCL(Broadcast);
CHECK_NCCL(AllGather);
CHECK_NCCL(ReduceScatter);
CHECK_NCCL(Send);
CHECK_NCCL(Recv);
CHECK_NCCL(GroupStart);
CHECK_NCCL(GroupEnd);
CHECK_NCCL(RedOpCreatePreMulSum);
CHECK_NCCL(RedOpDestroy);
CHECK_NCCL(GetErrorString);
CHECK_NCCL(GetLastError);
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 19, 0)
CHECK_NCCL(MemAlloc);
CHECK_NCCL(MemFree);
CHECK_NCCL(CommRegister);
CHECK_NCCL(CommDeregister);
#endif

RING_TEST(ConstantsAreNvidias) {
  EXPECT_EQ(nccl::kSuccess, int{ncclSuccess});
  EXPECT_EQ(nccl::kSystemError, int{ncclSystemError});
  EXPECT_EQ(nccl::kInternalError, int{ncclInternalError});
  EXPECT_EQ(nccl::kRemoteError, int{ncclRemoteError});
  EXPECT_EQ(nccl::kInProgress, int{ncclInProgress});
  EXPECT_EQ(nccl::kInt8, int{ncclInt8});
  EXPECT_EQ(nccl::kUint8, int{ncclUint8});
  EXPECT_EQ(nccl::kInt32, int{ncclInt32});
  EXPECT_EQ(nccl::kInt64, int{ncclInt64});
  EXPECT_EQ(nccl::kFloat16, int{ncclFloat16});
  EXPECT_EQ(nccl::kFloat32, int{ncclFloat32});
  EXPECT_EQ(nccl::kFloat64, int{ncclFloat64});
  EXPECT_EQ(nccl::kBfloat16, int{ncclBfloat16});
  EXPECT_EQ(nccl::kSum, int{ncclSum});
  EXPECT_EQ(nccl::kProduct, int{ncclProd});
  EXPECT_EQ(nccl::kMax, int{ncclMax});
  EXPECT_EQ(nccl::kMin, int{ncclMin});
  EXPECT_EQ(nccl::kScalarOnHost, int{ncclScalarHostImmediate});
  EXPECT_EQ(nccl::kNoColor, NCCL_SPLIT_NOCOLOR);
}

// Ours is the beginning of it, and says so.
RING_TEST(TheConfigurationBeginsLikeNvidias) {
  const ncclConfig_t theirs = NCCL_CONFIG_INITIALIZER;
  const nccl::Config ours;
  EXPECT_LE(sizeof(ours), sizeof(theirs));
  EXPECT_EQ(ours.nbytes, sizeof(ours));
  EXPECT_EQ(ours.magic, theirs.magic);
  EXPECT_EQ(ours.version, unsigned{NCCL_VERSION(2, 18, 0)});
  EXPECT_EQ(ours.cga_cluster_size, theirs.cgaClusterSize);
  EXPECT_EQ(ours.net_name == nullptr, theirs.netName == nullptr);
  EXPECT_EQ(offsetof(nccl::Config, magic), offsetof(ncclConfig_t, magic));
  EXPECT_EQ(offsetof(nccl::Config, blocking), offsetof(ncclConfig_t, blocking));
  EXPECT_EQ(offsetof(nccl::Config, net_name), offsetof(ncclConfig_t, netName));
  EXPECT_EQ(offsetof(nccl::Config, split_share),
            offsetof(ncclConfig_t, splitShare));
}

}  // namespace
}  // namespace ring_keras::testing
