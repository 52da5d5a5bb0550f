// Streams over the connections to other ranks, encrypted if the job says so.
#ifndef RING_KERAS_RUNTIME_LINK_STREAMS_H_
#define RING_KERAS_RUNTIME_LINK_STREAMS_H_

#include <map>
#include <memory>
#include <vector>

#include "tf_ops/common/deadline.h"
#include "tf_ops/common/status.h"
#include "tf_ops/common/store.h"
#include "tf_ops/runtime/tcp_links.h"
#include "tf_ops/transport/stream.h"
#include "tf_ops/transport/tcp/poller.h"

namespace ring_keras {

// By rank, as many as there are sockets.
using LinkStreams = std::map<int, std::vector<std::unique_ptr<Stream>>>;

// Of a connection to `peer`; TLS is agreed on while the streams are used.
// `poller` outlives them. Errors: Internal.
StatusOr<std::vector<std::unique_ptr<Stream>>> MakeStreams(
    const TcpLinkOptions& options, int peer,
    std::vector<FileDescriptor> sockets, Poller& poller);

// Returns when both ends of each have agreed on TLS, if `options.encrypts`. The
// other ranks do the same at the same time. `poller` outlives the streams.
// Errors: DeadlineExceeded, Interrupted, PeerLost, Unauthenticated (names both
// ranks, and why), Internal.
StatusOr<LinkStreams> MakeLinkStreams(const TcpLinkOptions& options,
                                      TcpLinks links, Poller& poller,
                                      Store& store, Deadline deadline);

}  // namespace ring_keras

#endif  // RING_KERAS_RUNTIME_LINK_STREAMS_H_
