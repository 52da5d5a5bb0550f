// What the tests of the store share: a job, its ranks, and raw connections that
// do what no client of ours would.
#ifndef RING_KERAS_TESTS_RENDEZVOUS_STORE_TEST_SUPPORT_H_
#define RING_KERAS_TESTS_RENDEZVOUS_STORE_TEST_SUPPORT_H_

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "tests/cpp/support/test.h"
#include "tf_ops/common/socket.h"
#include "tf_ops/rendezvous/handshake.h"
#include "tf_ops/rendezvous/store_protocol.h"
#include "tf_ops/rendezvous/tcp_store.h"
#include "tf_ops/rendezvous/tcp_store_server.h"

namespace ring_keras {

using testing::Has;
using testing::Soon;

inline const std::string kToken(32, 'T');
inline constexpr uint64_t kGeneration = 4;

inline std::unique_ptr<TcpStoreServer> StartServer(
    int size, const std::function<void(TcpStoreServerOptions&)>& adjust = {}) {
  TcpStoreServerOptions options;
  options.size = size;
  options.generation = kGeneration;
  options.token = kToken;
  if (adjust) adjust(options);
  StatusOr<std::unique_ptr<TcpStoreServer>> server =
      TcpStoreServer::Start(options);
  EXPECT_OK(server.status());
  return std::move(server.value());
}

inline TcpStoreOptions RankOptions(int port, int rank) {
  TcpStoreOptions options;
  options.host = "127.0.0.1";
  options.port = port;
  options.token = kToken;
  options.rank = rank;
  options.generation = kGeneration;
  options.host_name = "node7";
  options.connect_deadline = Soon();
  return options;
}

inline std::unique_ptr<TcpStore> Join(const TcpStoreServer& server, int rank) {
  StatusOr<std::unique_ptr<TcpStore>> store =
      ConnectTcpStore(RankOptions(server.port(), rank));
  EXPECT_OK(store.status());
  return std::move(store.value());
}

// The store goes on to serve a rank of a job that is not complete: it says who
// is missing, or which end explains that nobody will come.
inline void ExpectAnswered(TcpStore& store) {
  const Status status =
      store.Gather("served", "", Deadline::After(0.05)).status();
  EXPECT_TRUE(status.code() == StatusCode::kDeadlineExceeded ||
              Has(status.message(), "in the exchange of 'served'"))
      << status.message();
}

// Collects what a watcher is told. The watcher may outlive the log.
class EventLog {
 public:
  std::function<void(const RankEvent&)> Watcher() {
    return [state = state_](const RankEvent& event) {
      std::lock_guard<std::mutex> lock(state->mutex);
      state->events.push_back(event);
      state->changed.notify_all();
    };
  }

  // The events, once there are `count`.
  std::vector<RankEvent> WaitFor(size_t count) {
    std::unique_lock<std::mutex> lock(state_->mutex);
    const bool came = state_->changed.wait_for(
        lock, std::chrono::seconds(30),
        [&] { return state_->events.size() >= count; });
    EXPECT_TRUE(came) << "waited for " << count << " events, came "
                      << state_->events.size();
    std::vector<RankEvent> events = state_->events;
    events.resize(
        std::max(count, events.size()));  // So that callers may index.
    return events;
  }

 private:
  struct State {
    std::mutex mutex;
    std::condition_variable changed;
    std::vector<RankEvent> events;
  };
  std::shared_ptr<State> state_ = std::make_shared<State>();
};

// A blocking connection on which a test sends what it likes.
class RawConnection {
 public:
  // Not proven.
  explicit RawConnection(const TcpStoreServer& server) {
    StatusOr<FileDescriptor> fd =
        ConnectOnce("127.0.0.1", server.port(), Soon());
    EXPECT_OK(fd.status());
    fd_ = std::move(fd.value());
  }

  // Proven to be `rank`, and named; it never pings.
  static RawConnection AsRank(const TcpStoreServer& server, int rank,
                              int64_t pid = 4711) {
    RawConnection connection(server);
    EXPECT_OK(HandshakeAsClient(connection.fd(), Purpose::kStore,
                                {rank, kGeneration, 0}, -1, kToken, Soon())
                  .status());
    connection.Send({rendezvous::FrameType::kHello, 0, pid, "node7", ""});
    connection.ReadFrame(rendezvous::FrameType::kWelcome);
    return connection;
  }

  int fd() const { return fd_.get(); }
  void Close() { fd_.Close(); }

  void Send(const std::string& bytes) {
    EXPECT_EQ(send(fd(), bytes.data(), bytes.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(bytes.size()));
  }
  void Send(const rendezvous::Frame& frame) { Send(Encode(frame)); }

  // The next frame of `type`; others are skipped.
  rendezvous::Frame ReadFrame(rendezvous::FrameType type) {
    rendezvous::Frame frame;
    while (true) {
      StatusOr<bool> whole = reader_.Next(&frame);
      EXPECT_OK(whole.status());
      if (whole.value() && frame.type == type) return frame;
      if (whole.value()) continue;
      const std::string bytes = ReadSome();
      EXPECT_FALSE(bytes.empty()) << "closed before the frame came";
      if (bytes.empty()) return frame;
      reader_.Append(bytes);
    }
  }

  // Everything that comes until the server closes.
  std::string ReadUntilClosed() {
    std::string all;
    for (std::string bytes = ReadSome(); !bytes.empty(); bytes = ReadSome()) {
      all += bytes;
    }
    return all;
  }

 private:
  // Empty when the server has closed.
  std::string ReadSome() {
    StatusOr<bool> ready = WaitUntilReady(fd(), POLLIN, Soon());
    EXPECT_TRUE(ready.ok() && ready.value()) << "nothing came in time";
    char bytes[4096];
    const ssize_t got = recv(fd(), bytes, sizeof(bytes), MSG_DONTWAIT);
    return std::string(bytes, got > 0 ? static_cast<size_t>(got) : 0);
  }

  FileDescriptor fd_;
  rendezvous::FrameReader reader_;
};

}  // namespace ring_keras

#endif  // RING_KERAS_TESTS_RENDEZVOUS_STORE_TEST_SUPPORT_H_
