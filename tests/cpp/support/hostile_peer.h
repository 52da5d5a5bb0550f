// Connections of those who do not belong to a job.
#ifndef RING_KERAS_TESTS_SUPPORT_HOSTILE_PEER_H_
#define RING_KERAS_TESTS_SUPPORT_HOSTILE_PEER_H_

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "tests/cpp/support/test.h"
#include "tf_ops/common/socket.h"
#include "tf_ops/rendezvous/handshake_protocol.h"

namespace ring_keras::testing {

enum class Hostility {
  kSilent,
  kByteByByte,
  kGarbage,
  kTruncated,  // Half a hello, then nothing.
  kReplayed,   // An honest handshake of which it has a recording.
  kOversized,  // A hello that does not end.
  kWrongToken,
  kOtherGeneration,
};
constexpr int kHostilityCount = 8;

// Who listens at a port.
struct Listener {
  int port = 0;
  Purpose purpose = Purpose::kStore;
  int rank = -1;  // -1: the store.
};

// Of one that calls itself rank 1.
inline ClientHandshake HandshakeWith(const Listener& listener,
                                     const std::string& token,
                                     uint64_t generation) {
  return ClientHandshake(listener.purpose, {1, generation, 0}, listener.rank,
                         token);
}

// What an honest rank has said at `listener`: its hello, and its proof.
inline std::pair<std::string, std::string> RecordHandshake(
    const Listener& listener, const std::string& token) {
  auto socket = ConnectOnce("127.0.0.1", listener.port, Deadline::After(30));
  EXPECT_OK(socket);
  const int fd = socket.value().get();
  ClientHandshake client = HandshakeWith(listener, token, 0);
  const std::string hello = client.Start().value();
  EXPECT_EQ(send(fd, hello.data(), hello.size(), MSG_NOSIGNAL),
            static_cast<ssize_t>(hello.size()));
  std::string proof;
  while (proof.empty()) {
    EXPECT_TRUE(WaitUntilReady(fd, POLLIN, Deadline::After(30)).value());
    std::string bytes(client.bytes_wanted(), '\0');
    const ssize_t got = recv(fd, bytes.data(), bytes.size(), MSG_DONTWAIT);
    EXPECT_TRUE(got > 0);
    if (got <= 0) break;
    EXPECT_OK(client.Receive({bytes.data(), static_cast<size_t>(got)}, &proof));
  }
  return {hello, proof};
}

class HostilePeer {
 public:
  // `recorded`: by RecordHandshake(), with the job's `token`.
  HostilePeer(Hostility hostility, const Listener& listener,
              const std::string& token,
              const std::pair<std::string, std::string>& recorded)
      : hostility_(hostility),
        proof_(recorded.second),
        client_(HandshakeWith(
            listener,
            hostility == Hostility::kWrongToken ? std::string(32, 'x') : token,
            hostility == Hostility::kOtherGeneration ? 41 : 0)) {
    auto socket = ConnectOnce("127.0.0.1", listener.port, Deadline::After(30));
    EXPECT_OK(socket);
    if (socket.ok()) socket_ = std::move(socket.value());
    const std::string hello = client_.Start().value();
    switch (hostility) {
      case Hostility::kSilent:
        break;
      case Hostility::kByteByByte:
      case Hostility::kWrongToken:
      case Hostility::kOtherGeneration:
        unsent_ = hello;
        break;
      case Hostility::kGarbage:
        unsent_ = "GET / HTTP/1.1\r\n\r\n" + std::string(4096, '\xff');
        break;
      case Hostility::kTruncated:
        unsent_ = hello.substr(0, hello.size() / 2);
        break;
      case Hostility::kReplayed:
        unsent_ = recorded.first;
        break;
      case Hostility::kOversized:
        unsent_ = hello + std::string(256 << 10, '\0');
        break;
    }
  }

  // Says what it can; false once it has been dropped.
  bool GoesOn() {
    if (!socket_.valid()) return false;
    const size_t count =
        hostility_ == Hostility::kByteByByte ? 1 : unsent_.size();
    const ssize_t sent =
        send(socket_.get(), unsent_.data(), std::min(count, unsent_.size()),
             MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent > 0) unsent_.erase(0, static_cast<size_t>(sent));
    char bytes[256];
    const ssize_t got = recv(socket_.get(), bytes, sizeof(bytes), MSG_DONTWAIT);
    if (got > 0) {
      Answer({bytes, static_cast<size_t>(got)});
    } else if (got == 0 || (errno != EAGAIN && errno != EINTR)) {
      socket_.Close();
    }
    return socket_.valid();
  }

  // Whether the server has come to trust it, which must not be.
  bool trusted() const { return trusted_; }

 private:
  void Answer(std::string_view heard) {
    if (heard.size() < 8) return;
    const auto type = static_cast<rendezvous::MessageType>(heard[7]);
    trusted_ |= type == rendezvous::MessageType::kAcceptance;
    if (type != rendezvous::MessageType::kChallenge) return;
    if (hostility_ == Hostility::kReplayed) unsent_ = proof_;
    if (hostility_ != Hostility::kWrongToken) return;
    EXPECT_OK(client_.Receive(heard, &unsent_));
  }

  const Hostility hostility_;
  const std::string proof_;
  ClientHandshake client_;
  FileDescriptor socket_;
  std::string unsent_;
  bool trusted_ = false;
};

}  // namespace ring_keras::testing

#endif  // RING_KERAS_TESTS_SUPPORT_HOSTILE_PEER_H_
