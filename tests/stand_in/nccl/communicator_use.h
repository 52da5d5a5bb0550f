// One call's use of a communicator.
#ifndef RING_KERAS_TESTS_STAND_IN_NCCL_COMMUNICATOR_USE_H_
#define RING_KERAS_TESTS_STAND_IN_NCCL_COMMUNICATOR_USE_H_

#include <cstdio>
#include <cstdlib>
#include <memory>

#include "tests/stand_in/nccl/communicator.h"

namespace ring_keras::stand_in {

// Ends the process if another thread is in a call on the same communicator,
// which NCCL does not bear.
class CommunicatorUse {
 public:
  CommunicatorUse(ncclComm* handle, const char* function)
      : communicator_(FindCommunicator(handle)) {
    if (communicator_ == nullptr || communicator_->Enter()) return;
    std::fprintf(stderr,
                 "stand-in NCCL: %s on a communicator that another thread is "
                 "using\n",
                 function);
    std::abort();
  }
  ~CommunicatorUse() {
    if (communicator_ != nullptr) communicator_->Leave();
  }
  CommunicatorUse(const CommunicatorUse&) = delete;
  CommunicatorUse& operator=(const CommunicatorUse&) = delete;

  // Why the call cannot be made: there is no such communicator, the one before
  // is not done, or an error came.
  int error() const {
    if (communicator_ == nullptr) return kNcclInvalidArgument;
    const int state = communicator_->state();
    if (state != kNcclInProgress) return state;
    communicator_->SetLastError(
        "Attempt to use communicator before the previous operation returned "
        "ncclSuccess");
    return kNcclInvalidArgument;
  }

  Communicator* operator->() const { return communicator_.get(); }
  const std::shared_ptr<Communicator>& shared() const { return communicator_; }

 private:
  const std::shared_ptr<Communicator> communicator_;
};

}  // namespace ring_keras::stand_in

#endif  // RING_KERAS_TESTS_STAND_IN_NCCL_COMMUNICATOR_USE_H_
