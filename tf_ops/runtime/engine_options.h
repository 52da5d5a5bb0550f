#ifndef RING_KERAS_RUNTIME_ENGINE_OPTIONS_H_
#define RING_KERAS_RUNTIME_ENGINE_OPTIONS_H_

#include <string>
#include <vector>

namespace ring_keras {

struct EngineOptions {
  double collective_timeout_s = 600;
  double stall_warning_s = 60;
  // How long a blocking call looks for its peers' data, offering the core to
  // others, before it sleeps.
  double drive_alone_s = 1e-3;
  // "rank 1 (host node7, pid 4711)" for every rank of the job.
  std::vector<std::string> rank_names;
  // See InitOptions.
  std::string trace_dir;
};

}  // namespace ring_keras

#endif  // RING_KERAS_RUNTIME_ENGINE_OPTIONS_H_
