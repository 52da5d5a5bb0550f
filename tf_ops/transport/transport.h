// What carries bytes between ranks that share no memory: TCP, MPI, or a library
// that somebody else wrote (docs/transports.md).
//
// A transport makes streams (stream.h), by which ranks send and receive, and
// sees to it that these get on. Which one a job has is chosen by name, and is
// the same on all ranks (runtime/transport_choice.h). Not thread-safe: in
// init() its caller, then the engine's driver.
#ifndef RING_KERAS_TRANSPORT_TRANSPORT_H_
#define RING_KERAS_TRANSPORT_TRANSPORT_H_

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tf_ops/common/deadline.h"
#include "tf_ops/common/status.h"
#include "tf_ops/common/store.h"
#include "tf_ops/transport/link_source.h"

namespace ring_keras {

class Transport {
 public:
  virtual ~Transport() = default;

  // "tcp", "mpi", or what a library calls itself: the same on all ranks that
  // can reach each other by it.
  virtual std::string name() const = 0;

  // Connects this rank to `peers`, which do the same at the same time. Every
  // rank of the job calls it once, also one without peers. The transport
  // outlives the streams. Errors: PeerLost (also: a rank has ended), Internal,
  // DeadlineExceeded, Interrupted, RankMismatch, ResourceExhausted,
  // Unauthenticated.
  virtual StatusOr<std::vector<NewLink>> Connect(const std::vector<int>& peers,
                                                 Store& store,
                                                 Deadline deadline) = 0;

  // In place of Connect(), in a job of many hosts: connections are made when
  // they are needed, those to `first` before this returns. `on_new` is called,
  // from any thread, when has_new() may have become true. Null: this transport
  // connects all ranks at once, in Connect().
  virtual StatusOr<std::unique_ptr<LinkSource>> ConnectLater(
      const std::vector<int>& peers, const std::vector<int>& first,
      std::function<void()> on_new, Store& store, Deadline deadline) {
    (void)peers, (void)first, (void)on_new, (void)store, (void)deadline;
    return std::unique_ptr<LinkSource>();
  }

  // Takes note of what has come since the last call. One of these comes before
  // each look at all streams.
  virtual void Collect() = 0;

  // Readable while there is something to collect; -1: nothing tells, so that
  // who waits has to look again and again.
  virtual int descriptor() const = 0;

  // How long messages are best, where a collective may choose: long enough that
  // what each costs does not matter. The same on all ranks.
  virtual size_t message_nbytes() const { return kMessageBytes; }
  static constexpr size_t kMessageBytes = size_t{128} << 10;

  // `peer` has died: nothing that it should do is to be waited for.
  virtual void Lose(int peer) { (void)peer; }
};

}  // namespace ring_keras

#endif  // RING_KERAS_TRANSPORT_TRANSPORT_H_
