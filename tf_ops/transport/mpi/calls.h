// The part of MPI that we use, whichever MPI it is: they differ in what a
// handle is and in the values of constants.
#ifndef RING_KERAS_TRANSPORT_MPI_CALLS_H_
#define RING_KERAS_TRANSPORT_MPI_CALLS_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "tf_ops/common/status.h"

namespace ring_keras::mpi {

// A message under way. Where the handle of one fits: 4 bytes or 8.
struct Request {
  uint64_t handle = 0;
};

// What came of asking for a message.
struct Progress {
  bool done = false;
  int nbytes = 0;  // Of one that has been received.
};

// Functions return MPI's error codes, of which 0 is success. Messages go over a
// communicator of their own, so that they meet nobody else's.
class Calls {
 public:
  static constexpr int kSuccess = 0;

  virtual ~Calls() = default;

  virtual bool IsInitialized() const = 0;
  virtual bool IsFinalized() const = 0;
  // Asks for calls from any thread at a time.
  virtual int Initialize() = 0;
  virtual int Finalize() = 0;
  // Whether MPI allows what Initialize() has asked for; whoever has begun it.
  virtual bool AllowsAllThreads() const = 0;
  // In which all of MPI's processes are counted.
  virtual int rank() const = 0;
  virtual int size() const = 0;

  // Has MPI call `function` when somebody ends it, before it does.
  virtual int BeforeEnd(std::function<void()> function) = 0;

  // Makes the communicator. All processes call it; it is done when Test() says
  // so of `request`, and the second function comes after that.
  virtual int BeginCommunicator(Request* request) = 0;
  virtual int FinishCommunicator() = 0;

  // The memory is MPI's until the request is done.
  virtual int Send(const void* data, size_t nbytes, int rank, int tag,
                   Request* request) = 0;
  virtual int Receive(void* data, size_t nbytes, int rank, int tag,
                      Request* request) = 0;
  virtual int Test(Request* request, Progress* progress) = 0;
  // A receive that need not come any more; Test() says when it is over.
  virtual int Cancel(Request* request) = 0;
  // Lets MPI go on with what it has.
  virtual int MakeProgress() = 0;

  // What MPI says of an error, and of itself.
  virtual std::string Describe(int error) const = 0;
  virtual std::string version() const = 0;
};

// Opens MPI: `library`, if it is not empty; else the one that the process has
// loaded, one in `folder`, or the loader's. It stays open. Internal: there is
// none, or none that we know.
StatusOr<std::unique_ptr<Calls>> OpenCalls(const std::string& library,
                                           const std::string& folder);

}  // namespace ring_keras::mpi

#endif  // RING_KERAS_TRANSPORT_MPI_CALLS_H_
