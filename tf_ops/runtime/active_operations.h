// The operations that the driver has taken, until they end.
#ifndef RING_KERAS_RUNTIME_ACTIVE_OPERATIONS_H_
#define RING_KERAS_RUNTIME_ACTIVE_OPERATIONS_H_

#include <memory>
#include <vector>

#include "tf_ops/runtime/operation.h"

namespace ring_keras {

// The driver's.
struct ActiveOperations {
  std::vector<std::unique_ptr<Operation>> adopted;
  // Taken, and not adopted yet, while others start, which read messages; null
  // once it is.
  std::vector<std::unique_ptr<Operation>> adopting;
  // The one that starts alone; else null.
  Operation* alone = nullptr;

  template <typename Visit>
  void ForEach(Visit visit) const {
    for (const auto& operation : adopted) visit(*operation);
    for (const auto& operation : adopting) {
      if (operation != nullptr) visit(*operation);
    }
    if (alone != nullptr) visit(*alone);
  }
};

}  // namespace ring_keras

#endif  // RING_KERAS_RUNTIME_ACTIVE_OPERATIONS_H_
