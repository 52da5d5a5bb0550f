// Up to how many bytes which algorithm runs: the same on every rank of a job.
//
// Ranks pick an algorithm each for itself, so a rank with another threshold
// would talk past its peers. Join() therefore compares the ranks' settings.
#ifndef RING_KERAS_COLLECTIVES_TUNING_H_
#define RING_KERAS_COLLECTIVES_TUNING_H_

#include <array>
#include <cstddef>

namespace ring_keras {

// Bytes count all tensors of one allreduce together. Below a threshold, fewer
// synchronisations or messages win over fewer bytes.
struct Tuning {
  // One host, three ranks or more: every rank reduces everything. Above, each
  // reduces a part.
  size_t shared_flat_max_bytes = 16 << 10;
  // Across hosts: all to all, with the announcements, which hold 64 KiB.
  size_t direct_max_bytes = 4 << 10;
  // Across hosts with one rank each, above direct_max_bytes: recursive
  // doubling.
  size_t recursive_doubling_max_bytes = 16 << 10;
  // The same, above both: each rank reduces a part that all send it. Above, a
  // ring moves no more than the links carry.
  size_t parts_max_bytes = 1 << 20;
};

// Every setting with its name in Python; RING_KERAS_<NAME> in the environment.
struct TuningSetting {
  const char* name;
  size_t Tuning::* value;
};
inline constexpr std::array<TuningSetting, 4> kTuningSettings = {{
    {"shared_flat_max_bytes", &Tuning::shared_flat_max_bytes},
    {"direct_max_bytes", &Tuning::direct_max_bytes},
    {"recursive_doubling_max_bytes", &Tuning::recursive_doubling_max_bytes},
    {"parts_max_bytes", &Tuning::parts_max_bytes},
}};

}  // namespace ring_keras

#endif  // RING_KERAS_COLLECTIVES_TUNING_H_
