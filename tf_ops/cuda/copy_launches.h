// How a list of segments becomes launches of a kernel. No CUDA in it, so that
// tests can run the launches on the host.
#ifndef RING_KERAS_CUDA_COPY_LAUNCHES_H_
#define RING_KERAS_CUDA_COPY_LAUNCHES_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <span>

#include "tf_ops/common/data_type.h"
#include "tf_ops/common/status.h"
#include "tf_ops/cuda/device_arguments.h"
#include "tf_ops/cuda/pack.h"

namespace ring_keras::cuda {

// The kernel of CopyScaled(), if it does this.
std::optional<Kernel> CopyKernel(DataType from, DataType to, double scale);

// Launches `blocks` blocks of kThreads. The launch has read the arguments when
// it returns.
using LaunchCopy =
    std::function<Status(CopyArguments& arguments, unsigned blocks)>;

// Calls `launch` for at most kMaxSegments segments at a time; not for empty
// ones. Stops at the first failure. Requires that `kernel` is CopyKernel()'s.
Status ForEachLaunch(Kernel kernel, DataType from, DataType to, double scale,
                     std::span<const Segment> segments,
                     const LaunchCopy& launch);

}  // namespace ring_keras::cuda

#endif  // RING_KERAS_CUDA_COPY_LAUNCHES_H_
