// Streams over the connections to other ranks, encrypted if the job says so.
#ifndef RING_KERAS_RUNTIME_LINK_STREAMS_H_
#define RING_KERAS_RUNTIME_LINK_STREAMS_H_

#include <memory>
#include <vector>

#include "tf_ops/common/deadline.h"
#include "tf_ops/common/status.h"
#include "tf_ops/common/store.h"
#include "tf_ops/runtime/tcp_link_options.h"
#include "tf_ops/transport/link_source.h"
#include "tf_ops/transport/stream.h"
#include "tf_ops/transport/tcp/poller.h"

namespace ring_keras {

// Of a connection to `peer`; TLS is agreed on while the streams are used.
// `poller` outlives them. Errors: Internal.
StatusOr<std::vector<std::unique_ptr<Stream>>> MakeStreams(
    const TcpLinkOptions& options, int peer,
    std::vector<FileDescriptor> sockets, Poller& poller);

// Returns when both ends of each have agreed on TLS, if `options.encrypts`. The
// other ranks do the same at the same time. Errors: those of `links`;
// DeadlineExceeded, Interrupted, PeerLost, Unauthenticated (names both ranks,
// and why).
Status AwaitAgreements(const TcpLinkOptions& options,
                       const std::vector<NewLink>& links, Poller& poller,
                       Store& store, Deadline deadline);

}  // namespace ring_keras

#endif  // RING_KERAS_RUNTIME_LINK_STREAMS_H_
