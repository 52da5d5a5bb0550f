// One rank's part in one collective, whatever the algorithm.
//
// The runtime calls, in this order: Prepare (may fill shared memory before any
// peer is there), then, once every rank has announced itself and all agree,
// Run.
#ifndef RING_KERAS_COLLECTIVES_COLLECTIVE_H_
#define RING_KERAS_COLLECTIVES_COLLECTIVE_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "tf_ops/collectives/arguments.h"
#include "tf_ops/collectives/communicator.h"
#include "tf_ops/collectives/task.h"

namespace ring_keras {

// What a rank announced that may differ between ranks.
struct Participant {
  int64_t rows = 0;             // First dimension of its input.
  std::vector<int64_t> splits;  // kAlltoall: rows for each rank.
  Window* window = nullptr;     // Where its data appear, if memory is shared.
};
using Participants = std::vector<Participant>;  // Indexed by rank.

class Collective {
 public:
  virtual ~Collective() = default;

  // Bytes of data in this rank's window; none: the algorithm needs no window.
  virtual std::optional<size_t> window_nbytes() const { return std::nullopt; }
  // Fills what fits of `window`, if the algorithm needs one.
  virtual void Prepare(Window* window) { (void)window; }

  // Exchanges the data. `participants` outlives the task.
  virtual Task Run(const Participants& participants) = 0;
};

// The algorithm for `arguments` on `communicator`. `key` names the collective
// in messages. Everything passed by reference outlives the result.
std::unique_ptr<Collective> MakeCollective(const CollectiveArguments& arguments,
                                           Communicator& communicator,
                                           uint64_t key);

}  // namespace ring_keras

#endif  // RING_KERAS_COLLECTIVES_COLLECTIVE_H_
