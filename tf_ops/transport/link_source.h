// Makes connections to ranks that begin without one.
#ifndef RING_KERAS_TRANSPORT_LINK_SOURCE_H_
#define RING_KERAS_TRANSPORT_LINK_SOURCE_H_

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tf_ops/common/status.h"
#include "tf_ops/transport/stream.h"

namespace ring_keras {

// What became of a connection to `peer`.
struct NewLink {
  int peer = -1;
  // There is none. DeadlineExceeded: its host does not answer. Unauthenticated.
  // ResourceExhausted: this rank has no descriptor left for it.
  Status failure;
  std::vector<std::unique_ptr<Stream>> streams;
  // Between which was tried, this rank's first; of a failure.
  std::pair<std::string, std::string> addresses;
};

class LinkSource {
 public:
  virtual ~LinkSource() = default;

  // This rank needs a connection to `peer`. Returns at once. The same rank
  // again means nothing. From any thread.
  virtual void Open(int peer) = 0;

  // `peer` has ended: nothing becomes of a connection that it still lacks.
  virtual void Forget(int peer) = 0;

  // Whether Take() has something to give.
  virtual bool has_new() const = 0;

  // Those that are new since the last call, each once. Only the driver's.
  virtual std::vector<NewLink> Take() = 0;

  // How many streams each has.
  virtual int stream_count() const = 0;
};

}  // namespace ring_keras

#endif  // RING_KERAS_TRANSPORT_LINK_SOURCE_H_
