// What the kernels of device_code.inc are given. Compiled by NVRTC too, hence
// no includes; it is put before device_code.inc.
#ifndef RING_KERAS_CUDA_DEVICE_ARGUMENTS_H_
#define RING_KERAS_CUDA_DEVICE_ARGUMENTS_H_

namespace ring_keras::cuda {

// Threads of a block, and 16-byte accesses of each: a block's share of the
// work, a *tile*, is kThreads * kGroupsPerThread groups. A group is 16 bytes of
// the wider of the two types.
constexpr int kThreads = 256;
constexpr int kGroupsPerThread = 4;
constexpr int kGroupNbytes = 16;

// As many as fit into the 4 KiB of parameters that a launch may have
// everywhere: they travel with the launch, so nothing has to be copied to the
// device before it, and nothing waits.
constexpr int kMaxSegments = 168;

// One launch of a kernel that copies. Elements are bytes for plain copies.
struct CopyArguments {
  const void* from[kMaxSegments];
  void* to[kMaxSegments];
  unsigned int count[kMaxSegments];  // Elements.
  // Tiles of this segment and all before it. Block b works on tile b.
  unsigned int tiles_end[kMaxSegments];
  unsigned int segment_count;
  double scale;
};
static_assert(sizeof(CopyArguments) <= 4096, "more than a launch may have");

// One launch of a kernel that sums pieces.
struct SumArguments {
  const void* pieces;
  void* sum;
  unsigned long long count;
  int piece_count;
  float scale;
};

}  // namespace ring_keras::cuda

#endif  // RING_KERAS_CUDA_DEVICE_ARGUMENTS_H_
