#include "tf_ops/common/socket.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstring>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>

#include "tf_ops/common/descriptors.h"

namespace ring_keras {
namespace {

// How long one of several addresses may take to answer: twice what the kernel
// waits before it asks again.
constexpr double kAddressTimeoutS = 3;

using AddressList = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

Status SystemError(const std::string& what) {
  const StatusCode code = IsOutOfDescriptors(errno)
                              ? StatusCode::kResourceExhausted
                              : StatusCode::kInternal;
  return Status(code, StrCat(what, ": ", ErrnoMessage(errno)));
}

StatusOr<AddressList> Resolve(const std::string& host, int port, int flags) {
  addrinfo hints = {};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const int error =
      getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
  if (error != 0) {
    return Status(StatusCode::kInternal,
                  StrCat("cannot resolve '", host, "': ", gai_strerror(error)));
  }
  return AddressList(found, freeaddrinfo);
}

// A name that is being looked up, and who is there.
// No std::promise: its wait needs a libstdc++ newer than that of old systems.
struct Lookup {
  std::mutex mutex;  // Guards what follows.
  std::condition_variable changed;
  bool done = false;
  Status status;
  AddressList list{nullptr, freeaddrinfo};
};

// In a thread of its own, which goes on if nobody waits any more: where no name
// server answers the C library tries for half a minute, and nothing ends that.
StatusOr<AddressList> LookUp(const std::string& host, int port,
                             Deadline deadline) {
  StatusOr<AddressList> number = Resolve(host, port, AI_NUMERICHOST);
  if (number.ok()) return number;
  auto lookup = std::make_shared<Lookup>();
  std::thread([lookup, host, port] {
    StatusOr<AddressList> list = Resolve(host, port, 0);
    std::lock_guard<std::mutex> lock(lookup->mutex);
    lookup->status = list.status();
    if (list.ok()) lookup->list = std::move(list.value());
    lookup->done = true;
    lookup->changed.notify_all();
  }).detach();
  std::unique_lock<std::mutex> lock(lookup->mutex);
  while (!lookup->changed.wait_for(
      lock, std::chrono::duration<double>(deadline.SliceSeconds()),
      [&] { return lookup->done; })) {
    if (deadline.Interrupted()) return Interrupted();
    if (deadline.Expired()) {
      return Status(
          StatusCode::kDeadlineExceeded,
          StrCat("cannot resolve '", host, "': no name server answers"));
    }
  }
  RING_KERAS_RETURN_IF_ERROR(lookup->status);
  return std::move(lookup->list);
}

bool IsWildcard(const sockaddr* address) {
  if (address->sa_family == AF_INET) {
    sockaddr_in ipv4;
    std::memcpy(&ipv4, address, sizeof(ipv4));
    return ipv4.sin_addr.s_addr == htonl(INADDR_ANY);
  }
  if (address->sa_family == AF_INET6) {
    sockaddr_in6 ipv6;
    std::memcpy(&ipv6, address, sizeof(ipv6));
    return IN6_IS_ADDR_UNSPECIFIED(&ipv6.sin6_addr);
  }
  return false;
}

StatusOr<FileDescriptor> OpenSocket(const addrinfo& address) {
  FileDescriptor fd(
      socket(address.ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd.valid()) return SystemError("cannot open a socket");
  return fd;
}

StatusOr<FileDescriptor> BeginConnectingTo(const addrinfo& address) {
  StatusOr<FileDescriptor> fd = OpenSocket(address);
  RING_KERAS_RETURN_IF_ERROR(fd.status());
  if (connect(fd.value().get(), address.ai_addr, address.ai_addrlen) != 0 &&
      errno != EINPROGRESS) {
    return SystemError("cannot connect");
  }
  return fd;
}

StatusOr<FileDescriptor> ConnectTo(const addrinfo& address, Deadline deadline) {
  StatusOr<FileDescriptor> fd = BeginConnectingTo(address);
  RING_KERAS_RETURN_IF_ERROR(fd.status());
  StatusOr<bool> ready = WaitUntilReady(fd.value().get(), POLLOUT, deadline);
  RING_KERAS_RETURN_IF_ERROR(ready.status());
  if (!ready.value()) {
    return Status(StatusCode::kDeadlineExceeded, "cannot connect: no answer");
  }
  RING_KERAS_RETURN_IF_ERROR(ConnectResult(fd.value().get()));
  return fd;
}

using NameFunction = int (*)(int, sockaddr*, socklen_t*);

// Numeric host and port of one end of a socket; empty if there is none.
std::pair<std::string, std::string> NumericAddress(NameFunction name_function,
                                                   int fd) {
  sockaddr_storage address = {};
  socklen_t length = sizeof(address);
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  char host[NI_MAXHOST] = "";
  char port[NI_MAXSERV] = "0";
  if (name_function(fd, generic, &length) != 0 ||
      getnameinfo(generic, length, host, sizeof(host), port, sizeof(port),
                  NI_NUMERICHOST | NI_NUMERICSERV) != 0) {
    return {"", "0"};
  }
  return {host, port};
}

std::string AddressText(NameFunction name_function, int fd) {
  const auto [host, port] = NumericAddress(name_function, fd);
  if (host.empty()) return "an unknown address";
  return HostPort(host, std::stoi(port));
}

}  // namespace

FileDescriptor::FileDescriptor(int fd) : fd_(fd) {
  if (fd >= 0) CloseInForkedChildren(fd);
}

void FileDescriptor::Close() {
  if (fd_ >= 0 && owner_.IsThis()) {
    NoLongerCloseInForkedChildren(fd_);
    close(fd_);
  }
  fd_ = -1;
}

StatusOr<FileDescriptor> Listen(const std::string& address, int port) {
  StatusOr<AddressList> list = Resolve(address, port, AI_PASSIVE);
  RING_KERAS_RETURN_IF_ERROR(list.status());
  const addrinfo& first = *list.value();
  if (IsWildcard(first.ai_addr)) {
    return Status(StatusCode::kInvalidArgument,
                  StrCat("'", address,
                         "' means every interface: listen on the one address "
                         "that the other hosts reach"));
  }
  StatusOr<FileDescriptor> fd = OpenSocket(first);
  RING_KERAS_RETURN_IF_ERROR(fd.status());
  const int reuse = 1;
  setsockopt(fd.value().get(), SOL_SOCKET, SO_REUSEADDR, &reuse, sizeof(reuse));
  if (bind(fd.value().get(), first.ai_addr, first.ai_addrlen) != 0 ||
      listen(fd.value().get(), SOMAXCONN) != 0) {
    return SystemError(StrCat("cannot listen on ", HostPort(address, port)));
  }
  return fd;
}

StatusOr<FileDescriptor> ConnectOnce(const std::string& host, int port,
                                     Deadline deadline) {
  StatusOr<AddressList> list = LookUp(host, port, deadline);
  RING_KERAS_RETURN_IF_ERROR(list.status());
  int left = 0;
  for (const addrinfo* address = list.value().get(); address != nullptr;
       address = address->ai_next) {
    ++left;
  }
  Status last;
  for (const addrinfo* address = list.value().get(); address != nullptr;
       address = address->ai_next, --left) {
    // One that does not answer leaves time for the others.
    const Deadline attempt =
        left == 1 ? deadline
                  : deadline.Within(std::min(
                        kAddressTimeoutS, deadline.RemainingSeconds() / left));
    StatusOr<FileDescriptor> fd = ConnectTo(*address, attempt);
    if (fd.ok()) {
      DisableNagle(fd.value().get());
      return fd;
    }
    last = fd.status();
    if (last.code() == StatusCode::kInterrupted) break;
  }
  return last;
}

StatusOr<FileDescriptor> BeginConnecting(const std::string& address, int port) {
  StatusOr<AddressList> list = Resolve(address, port, AI_NUMERICHOST);
  RING_KERAS_RETURN_IF_ERROR(list.status());
  return BeginConnectingTo(*list.value());
}

Status ConnectResult(int fd) {
  int error = 0;
  socklen_t length = sizeof(error);
  getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length);
  if (error == 0) return Status::Ok();
  errno = error;
  return SystemError("cannot connect");
}

void DisableNagle(int fd) {
  const int no_delay = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &no_delay, sizeof(no_delay));
}

void LimitUnacknowledged(int fd, double limit_s) {
  constexpr double kMostS = 1e6;  // What milliseconds have room for.
  const auto limit_ms = static_cast<unsigned>(std::min(limit_s, kMostS) * 1e3);
  setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &limit_ms, sizeof(limit_ms));
}

void ProbeWhenIdle(int fd, double limit_s) {
  constexpr int kIntervalS = 1;
  constexpr double kMostProbes = 100;  // The kernel takes no more than 127,
  constexpr double kMostIdleS = 3e4;   // and 32,767 s.
  const int probes =
      std::max(1, static_cast<int>(std::min(limit_s / 2, kMostProbes)));
  const int idle_s = std::max(
      1, static_cast<int>(std::min(limit_s, kMostIdleS)) - probes * kIntervalS);
  const int on = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle_s, sizeof(idle_s));
  setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &kIntervalS, sizeof(kIntervalS));
  setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof(probes));
  setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on));
}

StatusOr<bool> WaitUntilReady(int fd, short events, Deadline deadline) {
  while (true) {
    pollfd entry = {fd, events, 0};
    const int ready = poll(
        &entry, 1, static_cast<int>(deadline.SliceSeconds() * 1e3 + 0.999));
    if (ready < 0 && errno != EINTR) return SystemError("poll failed");
    if (deadline.Expired()) return false;
    if (ready > 0) return true;
    if (deadline.Interrupted()) return Interrupted();
  }
}

std::string LocalHost(int fd) { return NumericAddress(getsockname, fd).first; }

int LocalPort(int fd) {
  return std::stoi(NumericAddress(getsockname, fd).second);
}

std::string LocalAddress(int fd) { return AddressText(getsockname, fd); }

std::string PeerAddress(int fd) { return AddressText(getpeername, fd); }

std::string HostPort(const std::string& host, int port) {
  if (host.find(':') != std::string::npos) return StrCat("[", host, "]:", port);
  return StrCat(host, ":", port);
}

}  // namespace ring_keras
