// What the kernel knows of the bytes that went out over a TCP socket.
#ifndef RING_KERAS_TRANSPORT_TCP_TCP_TRAFFIC_H_
#define RING_KERAS_TRANSPORT_TCP_TCP_TRAFFIC_H_

#include "tf_ops/transport/stream.h"

namespace ring_keras {

// Nothing of a socket that is not TCP's, or on a kernel before 4.10.
SentTraffic TrafficOf(int socket);

}  // namespace ring_keras

#endif  // RING_KERAS_TRANSPORT_TCP_TCP_TRAFFIC_H_
