#include "tf_ops/collectives/abandoned_memory.h"

#include <cstdlib>

#include "tf_ops/common/logging.h"

namespace ring_keras {

void AbandonProcess(int rank, const Status& failure) {
  Log(LogLevel::kError,
      StrCat("this process ends: a collective has failed, and MPI still "
             "exchanges its data with rank ",
             rank,
             ", which does not answer. What the program did next would change "
             "what that rank gets. ",
             failure.ok()
                 ? "Look at what the other ranks say."
                 : "This is why it failed: " + failure.CodedMessage()));
  std::abort();
}

}  // namespace ring_keras
