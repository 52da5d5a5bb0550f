// Device memory in which small tensors travel together.
#ifndef RING_KERAS_COLLECTIVES_NCCL_FUSION_BUFFER_H_
#define RING_KERAS_COLLECTIVES_NCCL_FUSION_BUFFER_H_

#include <cstddef>
#include <memory>

#include "tf_ops/collectives/nccl/nccl_api.h"

namespace ring_keras::nccl {

// A tensor of this size gains nothing from travelling with others.
constexpr size_t kPackedBelowBytes = size_t{16} << 20;
// Two buckets of the default size (ring_keras/optimizers/buckets.py), so
// that one collective's tensors rarely need more than one round.
constexpr size_t kFusionBufferBytes = size_t{64} << 20;

class FusionBuffer {
 public:
  // Zeroed, in `stream`'s order. Registered with the communicator, which spares
  // NCCL a copy, where the library can do that. `device` is the thread's
  // current one.
  static StatusOr<std::unique_ptr<FusionBuffer>> Create(const Api& api,
                                                        CommHandle comm,
                                                        StreamHandle stream);
  // The device no longer uses it.
  ~FusionBuffer();
  FusionBuffer(const FusionBuffer&) = delete;
  FusionBuffer& operator=(const FusionBuffer&) = delete;

  char* data() const { return data_; }

  // Before the communicator is destroyed; not after it was aborted.
  void Deregister(CommHandle comm);

 private:
  FusionBuffer(const Api& api, char* data, bool is_nccls)
      : api_(api), data_(data), is_nccls_(is_nccls) {}

  const Api& api_;
  char* const data_;
  const bool is_nccls_;
  void* registration_ = nullptr;
};

}  // namespace ring_keras::nccl

#endif  // RING_KERAS_COLLECTIVES_NCCL_FUSION_BUFFER_H_
