// Two ends of a pair in one process, over each kind of stream.
#ifndef RING_KERAS_TESTS_TRANSPORT_TRANSPORT_TEST_SUPPORT_H_
#define RING_KERAS_TESTS_TRANSPORT_TRANSPORT_TEST_SUPPORT_H_

#include <unistd.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/cpp/support/memory_stream.h"
#include "tests/cpp/support/sockets.h"
#include "tests/cpp/support/test.h"
#include "tf_ops/common/socket.h"
#include "tf_ops/transport/pair.h"
#include "tf_ops/transport/shm/doorbell.h"
#include "tf_ops/transport/shm/ring_stream.h"
#include "tf_ops/transport/shm/segment.h"
#include "tf_ops/transport/tcp/tcp_stream.h"

namespace ring_keras {

using testing::Soon;

using Streams = std::vector<std::unique_ptr<Stream>>;

// Of an operation.
inline constexpr uint64_t kKey = 77;

// Two connected sockets on loopback.
inline std::pair<FileDescriptor, FileDescriptor> ConnectedSockets() {
  auto listener = Listen("127.0.0.1", 0);
  EXPECT_OK(listener);
  auto client =
      ConnectOnce("127.0.0.1", LocalPort(listener.value().get()), Soon());
  EXPECT_OK(client);
  auto server = testing::Accept(listener.value(), Soon());
  EXPECT_OK(server);
  return {std::move(client.value()), std::move(server.value())};
}

// One rank's shared memory, attached by this same process as if by a peer.
struct SharedEnd {
  SharedEnd()
      : segment(std::move(Segment::Create(2).value())),
        doorbell(std::move(Doorbell::Create().value())),
        remote(std::move(RemoteDoorbell::Open(getpid(),
                                              doorbell->write_descriptor(),
                                              &segment->header().sleeping)
                             .value())) {}
  std::unique_ptr<Segment> segment;
  std::unique_ptr<Doorbell> doorbell;
  std::unique_ptr<RemoteDoorbell> remote;
};

struct Control {
  FrameType type;
  uint64_t key;
  std::string payload;
};

// Both ends, and the control frames that reached the second.
class Link {
 public:
  static std::unique_ptr<Link> Shared() {
    auto link = std::make_unique<Link>();
    link->shared_.resize(2);
    SharedEnd& a = link->shared_[0];
    SharedEnd& b = link->shared_[1];
    Streams first, second;
    first.push_back(std::make_unique<RingStream>(
        &b.segment->inbox(0), &a.segment->inbox(1), b.remote.get()));
    second.push_back(std::make_unique<RingStream>(
        &a.segment->inbox(1), &b.segment->inbox(0), a.remote.get()));
    link->Connect(std::move(first), std::move(second));
    return link;
  }
  static std::unique_ptr<Link> Tcp(int stream_count) {
    auto link = std::make_unique<Link>();
    Streams first, second;
    for (int i = 0; i < stream_count; ++i) {
      auto [client, server] = ConnectedSockets();
      first.push_back(link->Watch(std::move(client)));
      second.push_back(link->Watch(std::move(server)));
    }
    link->Connect(std::move(first), std::move(second));
    return link;
  }
  // Whose payloads go around the bytes, if they are not short.
  static std::unique_ptr<Link> Direct(int stream_count) {
    auto link = Memory(stream_count);
    for (auto* pipes : {&link->to_first_, &link->to_second_}) {
      for (MemoryPipe& pipe : *pipes) pipe.direct_nbytes = size_t{16} << 10;
    }
    return link;
  }
  static std::unique_ptr<Link> Memory(int stream_count) {
    auto link = std::make_unique<Link>();
    link->to_first_.resize(stream_count);
    link->to_second_.resize(stream_count);
    Streams first, second;
    for (int i = 0; i < stream_count; ++i) {
      MemoryPipe* there = &link->to_second_[i];
      MemoryPipe* back = &link->to_first_[i];
      first.push_back(std::make_unique<MemoryStream>(there, back));
      second.push_back(std::make_unique<MemoryStream>(back, there));
    }
    link->Connect(std::move(first), std::move(second));
    return link;
  }
  static std::vector<std::unique_ptr<Link>> OfEveryKind() {
    std::vector<std::unique_ptr<Link>> links;
    links.push_back(Shared());
    links.push_back(Tcp(1));
    links.push_back(Tcp(3));
    links.push_back(Direct(1));
    links.push_back(Direct(3));
    return links;
  }

  Pair& first() { return *first_; }
  Pair& second() { return *second_; }
  MemoryPipe& to_second(int stream) { return to_second_[stream]; }
  MemoryPipe& to_first(int stream) { return to_first_[stream]; }
  std::vector<Control> controls;

  // Pumps both ends until `condition()`; a failure when that takes too long.
  void PumpUntil(const std::function<bool()>& condition) {
    const Deadline deadline = Soon();
    while (!condition() && !deadline.Expired()) {
      poller_->Collect();
      first_->Pump();
      second_->Pump();
    }
    EXPECT_TRUE(condition()) << "not in time";
  }

 private:
  std::unique_ptr<Stream> Watch(FileDescriptor socket) {
    return std::move(TcpStream::Create(std::move(socket), *poller_).value());
  }
  void Connect(Streams first, Streams second) {
    first_ = std::make_unique<Pair>(std::move(first));
    second_ = std::make_unique<Pair>(std::move(second));
    first_->set_control_handler([](FrameType, uint64_t, std::string) {});
    second_->set_control_handler(
        [this](FrameType type, uint64_t key, std::string payload) {
          controls.push_back({type, key, std::move(payload)});
        });
  }

  std::unique_ptr<Poller> poller_ = std::move(Poller::Create().value());
  std::vector<SharedEnd> shared_;
  std::vector<MemoryPipe> to_first_;
  std::vector<MemoryPipe> to_second_;
  std::unique_ptr<Pair> first_;
  std::unique_ptr<Pair> second_;
};

// Bytes that tell their place.
inline std::string Pattern(size_t nbytes, int seed) {
  std::string bytes(nbytes, '\0');
  for (size_t i = 0; i < nbytes; ++i) {
    bytes[i] = static_cast<char>(i * 31 + (i >> 8) * 7 + seed);
  }
  return bytes;
}

inline ReceiveOperation Into(std::string* target) {
  ReceiveOperation operation;
  operation.target = target->data();
  operation.nbytes = target->size();
  return operation;
}

}  // namespace ring_keras

#endif  // RING_KERAS_TESTS_TRANSPORT_TRANSPORT_TEST_SUPPORT_H_
