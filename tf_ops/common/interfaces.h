// This host's network interfaces, as far as other hosts may reach it by them.
#ifndef RING_KERAS_COMMON_INTERFACES_H_
#define RING_KERAS_COMMON_INTERFACES_H_

#include <string>
#include <vector>

#include "tf_ops/common/export.h"
#include "tf_ops/common/status.h"

namespace ring_keras {

struct InterfaceAddress {
  std::string interface;  // Such as "eth0".
  std::string address;    // Numeric.
  int speed_mbps = 0;     // 0: the kernel does not know.
  bool is_tunnel = false;
};

// The addresses of interfaces that are up: neither loopback nor link-local
// ones, nor those of bridges to containers and virtual machines of this host,
// which are the same on many hosts. IPv4 first, else in the kernel's order.
//
// `only`: of interfaces of these names; empty: of all. Errors: InvalidArgument
// (there is none of these names: says which there are), Internal.
RING_KERAS_EXPORT StatusOr<std::vector<InterfaceAddress>> InterfaceAddresses(
    const std::vector<std::string>& only);

// "10.0.0.1 on eth0, fd07::1 on eth0"; "none".
std::string Describe(const std::vector<InterfaceAddress>& addresses);

}  // namespace ring_keras

#endif  // RING_KERAS_COMMON_INTERFACES_H_
