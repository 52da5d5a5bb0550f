#include "tf_ops/common/interfaces.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <linux/ethtool.h>
#include <linux/sockios.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <string_view>

#include "tf_ops/common/socket.h"

namespace ring_keras {
namespace {

// Docker names a network of a user's own after its number: "br-" and 12
// hexadecimal digits.
bool IsInnerBridge(std::string_view name) {
  for (std::string_view prefix :
       {"docker", "podman", "virbr", "lxcbr", "lxdbr", "cni"}) {
    if (name.substr(0, prefix.size()) == prefix) return true;
  }
  return name.size() == 15 && name.substr(0, 3) == "br-" &&
         name.find_first_not_of("0123456789abcdef", 3) ==
             std::string_view::npos;
}

// Numeric; empty if no other host could reach it, or if it is none of IP.
std::string UsableAddress(const sockaddr* address) {
  char text[INET6_ADDRSTRLEN] = "";
  if (address->sa_family == AF_INET) {
    sockaddr_in ipv4;
    std::memcpy(&ipv4, address, sizeof(ipv4));
    const bool link_local = (ntohl(ipv4.sin_addr.s_addr) >> 16) == 0xA9FE;
    if (link_local) return "";
    inet_ntop(AF_INET, &ipv4.sin_addr, text, sizeof(text));
  } else if (address->sa_family == AF_INET6) {
    sockaddr_in6 ipv6;
    std::memcpy(&ipv6, address, sizeof(ipv6));
    if (IN6_IS_ADDR_LINKLOCAL(&ipv6.sin6_addr)) return "";
    inet_ntop(AF_INET6, &ipv6.sin6_addr, text, sizeof(text));
  }
  return text;
}

// By a socket rather than by /sys/class/net, which may show the interfaces of
// another network namespace.
int SpeedMbps(int any_socket, const std::string& interface) {
  ethtool_cmd command = {};
  command.cmd = ETHTOOL_GSET;
  ifreq request = {};
  interface.copy(request.ifr_name, IFNAMSIZ - 1);
  request.ifr_data = reinterpret_cast<char*>(&command);
  if (ioctl(any_socket, SIOCETHTOOL, &request) != 0) return 0;
  const uint32_t speed = ethtool_cmd_speed(&command);
  return speed > static_cast<uint32_t>(INT32_MAX) ? 0 : static_cast<int>(speed);
}

StatusOr<std::vector<InterfaceAddress>> AllAddresses() {
  ifaddrs* first = nullptr;
  if (getifaddrs(&first) != 0) {
    return Status(
        StatusCode::kInternal,
        StrCat("cannot list network interfaces: ", ErrnoMessage(errno)));
  }
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> list(first,
                                                              freeifaddrs);
  const FileDescriptor any_socket(
      socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  std::vector<InterfaceAddress> found;
  for (const ifaddrs* at = first; at != nullptr; at = at->ifa_next) {
    constexpr unsigned kUp = IFF_UP | IFF_RUNNING;
    const unsigned state = at->ifa_flags & (kUp | IFF_LOOPBACK);
    if (state != kUp || at->ifa_addr == nullptr) continue;
    if (IsInnerBridge(at->ifa_name)) continue;
    const std::string address = UsableAddress(at->ifa_addr);
    if (address.empty()) continue;
    found.push_back({at->ifa_name, address,
                     SpeedMbps(any_socket.get(), at->ifa_name),
                     (at->ifa_flags & IFF_POINTOPOINT) != 0});
  }
  std::stable_partition(found.begin(), found.end(),
                        [](const InterfaceAddress& entry) {
                          return entry.address.find(':') == std::string::npos;
                        });
  return found;
}

}  // namespace

StatusOr<std::vector<InterfaceAddress>> InterfaceAddresses(
    const std::vector<std::string>& only) {
  StatusOr<std::vector<InterfaceAddress>> all = AllAddresses();
  if (!all.ok() || only.empty()) return all;
  std::vector<InterfaceAddress> named;
  for (const InterfaceAddress& entry : all.value()) {
    if (std::find(only.begin(), only.end(), entry.interface) != only.end()) {
      named.push_back(entry);
    }
  }
  if (!named.empty()) return named;
  std::string names;
  for (const std::string& name : only) {
    names += (names.empty() ? "" : " or ") + name;
  }
  return Status(StatusCode::kInvalidArgument, ErrorCode::kNoSuchInterface,
                StrCat("this host has no network interface ", names,
                       " that is up and that other hosts could reach. It has ",
                       Describe(all.value())));
}

std::string Describe(const std::vector<InterfaceAddress>& addresses) {
  std::string text;
  for (const InterfaceAddress& entry : addresses) {
    text += StrCat(text.empty() ? "" : ", ", entry.address, " on ",
                   entry.interface);
  }
  return text.empty() ? "none" : text;
}

}  // namespace ring_keras
