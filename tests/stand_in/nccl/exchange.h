// Messages that go to and come from several ranks at the same time.
#ifndef RING_KERAS_TESTS_STAND_IN_NCCL_EXCHANGE_H_
#define RING_KERAS_TESTS_STAND_IN_NCCL_EXCHANGE_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "tests/stand_in/nccl/communicator.h"

namespace ring_keras::stand_in {

// Messages between two ranks arrive in the order in which they were added, and
// both sides know their lengths.
class Exchange {
 public:
  explicit Exchange(Communicator& communicator) : communicator_(communicator) {}

  // The memory stays until Finish() returns.
  void Send(int to, const void* data, size_t size);
  void Receive(int from, void* data, size_t size);

  // Moves everything. False if the communicator was aborted before that.
  bool Finish();

 private:
  struct Transfer {
    Pipe* pipe;
    int peer;
    char* data;
    size_t size;
    size_t done;
  };

  bool MoveOut(Transfer& transfer);
  bool MoveIn(Transfer& transfer);
  template <bool (Exchange::*Move)(Transfer&)>
  bool MoveAll(std::vector<Transfer>& transfers);

  Communicator& communicator_;
  std::vector<Transfer> sends_;
  std::vector<Transfer> receives_;
};

}  // namespace ring_keras::stand_in

#endif  // RING_KERAS_TESTS_STAND_IN_NCCL_EXCHANGE_H_
