// A transport that a library brings, opened by its path.
#ifndef RING_KERAS_TRANSPORT_LIBRARY_LIBRARY_TRANSPORT_H_
#define RING_KERAS_TRANSPORT_LIBRARY_LIBRARY_TRANSPORT_H_

#include <memory>
#include <string>
#include <vector>

#include "tf_ops/transport/library/ring_keras_transport.h"
#include "tf_ops/transport/transport.h"

namespace ring_keras {

using LibraryJob = ring_keras_transport_job;
using LibraryCalls = ring_keras_transport_calls;

class LibraryTransport : public Transport {
 public:
  // Opens the library, which stays open until the process ends. Errors:
  // InvalidArgument (there is none, or it is no transport), Internal.
  static StatusOr<std::unique_ptr<LibraryTransport>> Load(
      const std::string& path, const LibraryJob& job);
  ~LibraryTransport() override;

  std::string name() const override { return calls_.name; }
  StatusOr<std::vector<NewLink>> Connect(const std::vector<int>& peers,
                                         Store& store,
                                         Deadline deadline) override;
  void Collect() override { calls_.progress(transport_); }
  int descriptor() const override { return calls_.wait(transport_); }
  void Lose(int peer) override;

 private:
  LibraryTransport(const LibraryCalls& calls, const LibraryJob& job)
      : calls_(calls), job_(job) {}

  const LibraryCalls& calls_;
  const LibraryJob job_;
  void* transport_ = nullptr;  // The library's; set by Connect().
};

}  // namespace ring_keras

#endif  // RING_KERAS_TRANSPORT_LIBRARY_LIBRARY_TRANSPORT_H_
