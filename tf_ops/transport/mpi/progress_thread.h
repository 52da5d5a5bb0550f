// Has MPI go on while nothing else calls it.
//
// MPI does nothing by itself: what it has taken may lie in this process until
// somebody calls it again, and a large message needs answers of both ends. A
// rank that has sent its last for a while, in init(), in a collective or in
// shutdown(), would leave its peers waiting.
#ifndef RING_KERAS_TRANSPORT_MPI_PROGRESS_THREAD_H_
#define RING_KERAS_TRANSPORT_MPI_PROGRESS_THREAD_H_

#include <condition_variable>
#include <functional>
#include <mutex>

namespace ring_keras::mpi {

class ProgressThread {
 public:
  // Calls `go_on` every few milliseconds until Stop(), from a thread that is
  // never joined: a process may end without.
  void Start(std::function<void()> go_on);
  // It is not called any more when this returns, unless it hangs. Again: means
  // nothing.
  void Stop();

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool running_ = false;
  bool stopping_ = false;
};

}  // namespace ring_keras::mpi

#endif  // RING_KERAS_TRANSPORT_MPI_PROGRESS_THREAD_H_
