#include "tf_ops/transport/tcp/tcp_traffic.h"

// The kernel's own: the C library's tcp_info, which cannot be included beside
// it, is older.
#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstddef>

namespace ring_keras {

SentTraffic TrafficOf(int socket) {
  tcp_info info = {};
  socklen_t length = sizeof(info);
  if (getsockopt(socket, IPPROTO_TCP, TCP_INFO, &info, &length) != 0 ||
      length < offsetof(tcp_info, tcpi_sndbuf_limited)) {
    return {};
  }
  // While the peer had no room, the network was not what was slow.
  const auto busy_us = info.tcpi_busy_time -
                       std::min(info.tcpi_rwnd_limited, info.tcpi_busy_time);
  return {info.tcpi_bytes_acked, static_cast<double>(busy_us) * 1e-6};
}

}  // namespace ring_keras
