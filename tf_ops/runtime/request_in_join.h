// What a rank that is in a join brings to its peers' collectives: nothing, in
// the form that each kind has for it.
#ifndef RING_KERAS_RUNTIME_REQUEST_IN_JOIN_H_
#define RING_KERAS_RUNTIME_REQUEST_IN_JOIN_H_

#include <memory>

#include "tf_ops/matching/announcement.h"
#include "tf_ops/runtime/request.h"

namespace ring_keras {

struct RequestInJoin {
  // Not able: where the collective cannot do without this rank's data.
  Request request;
  // Holds what the request reads and writes, until its end.
  DoneCallback done;
};

// For the collective that a peer has announced, on a communicator of `size`
// ranks in which this rank has the place `rank`. Sums get zeros, averages a
// weight of 0, gathers no rows. `join` is this rank's: see Request::why_needed.
RequestInJoin MakeRequestInJoin(const Announcement& peer, int rank, int size,
                                const Request& join);

}  // namespace ring_keras

#endif  // RING_KERAS_RUNTIME_REQUEST_IN_JOIN_H_
