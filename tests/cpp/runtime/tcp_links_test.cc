// Ranks connect to each other while strangers knock at their doors.
#include "tf_ops/runtime/tcp_links.h"

#include <poll.h>
#include <sys/socket.h>

#include <chrono>
#include <condition_variable>
#include <functional>
#include <future>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "tests/cpp/support/standard_error_capture.h"
#include "tests/cpp/support/test.h"
#include "tf_ops/rendezvous/handshake.h"

namespace ring_keras {
namespace {

using testing::StandardErrorCapture;

const std::string kToken(32, 'T');
constexpr uint64_t kGeneration = 4;

Deadline Soon() { return Deadline::After(30); }

bool Has(const std::string& text, const std::string& words) {
  return text.find(words) != std::string::npos;
}

// The keys of a job whose ranks are threads.
class MapStore : public Store {
 public:
  Status Set(const std::string& key, const std::string& value) override {
    std::lock_guard<std::mutex> lock(mutex_);
    values_[key] = value;
    changed_.notify_all();
    return Status::Ok();
  }
  StatusOr<std::string> Get(const std::string& key,
                            Deadline deadline) override {
    std::unique_lock<std::mutex> lock(mutex_);
    const bool set = changed_.wait_for(
        lock, std::chrono::duration<double>(deadline.RemainingSeconds()),
        [&] { return values_.count(key) > 0; });
    if (set) return values_[key];
    return Status(StatusCode::kDeadlineExceeded, key);
  }
  void Watch(std::function<void(const RankEvent&)>) override {}
  void Leave(const std::string&) override {}

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, std::string> values_;
};

TcpLinkOptions OptionsOf(int rank, int streams) {
  TcpLinkOptions options;
  options.rank = rank;
  options.generation = kGeneration;
  options.token = kToken;
  options.bind_address = "127.0.0.1";
  options.streams = streams;
  return options;
}

std::future<StatusOr<TcpLinks>> StartRank(const TcpLinkOptions& options,
                                          int size, Store& store,
                                          Deadline deadline = Soon()) {
  return std::async(std::launch::async, [=, &store] {
    std::vector<int> peers;
    for (int rank = 0; rank < size; ++rank) {
      if (rank != options.rank) peers.push_back(rank);
    }
    return ConnectTcpLinks(options, peers, store, deadline);
  });
}

// A connection to where `rank` listens, as anybody may make it.
FileDescriptor Knock(int rank, Store& store) {
  const auto text = store.Get(StrCat("tcp/address/", rank), Soon());
  EXPECT_OK(text);
  const size_t space = text.value().find(' ');
  auto socket = Connect(text.value().substr(0, space),
                        std::stoi(text.value().substr(space + 1)), Soon());
  EXPECT_OK(socket);
  return std::move(socket.value());
}

// Whether the other side has closed the connection, or does so soon.
bool IsTurnedAway(const FileDescriptor& socket) {
  char byte;
  while (true) {
    const auto ready = WaitUntilReady(socket.get(), POLLIN, Soon());
    if (!ready.ok() || !ready.value()) return false;
    const ssize_t got = recv(socket.get(), &byte, 1, 0);
    if (got <= 0) return true;
  }
}

RING_TEST(EveryStreamLeadsToItsTwin) {
  constexpr int kSize = 3;
  constexpr int kStreams = 2;
  MapStore store;
  std::vector<std::future<StatusOr<TcpLinks>>> ranks;
  for (int rank = 0; rank < kSize; ++rank) {
    ranks.push_back(StartRank(OptionsOf(rank, kStreams), kSize, store));
  }
  std::vector<TcpLinks> links;
  for (auto& rank : ranks) {
    StatusOr<TcpLinks> got = rank.get();
    ASSERT_OK(got);
    links.push_back(std::move(got.value()));
  }
  for (int a = 0; a < kSize; ++a) {
    ASSERT_EQ(links[a].size(), kSize - 1);
    for (auto& [b, sockets] : links[a]) {
      ASSERT_EQ(sockets.size(), kStreams);
      for (int channel = 0; channel < kStreams; ++channel) {
        const std::string said = StrCat(a, " to ", b, " over ", channel);
        ASSERT_EQ(send(sockets[channel].get(), said.data(), said.size(), 0),
                  static_cast<ssize_t>(said.size()));
        const FileDescriptor& twin = links[b].at(a)[channel];
        ASSERT_TRUE(WaitUntilReady(twin.get(), POLLIN, Soon()).value());
        char heard[64];
        const ssize_t got = recv(twin.get(), heard, sizeof(heard), 0);
        EXPECT_EQ(std::string(heard, got), said);
      }
    }
  }
}

RING_TEST(StrangersAreTurnedAwayAndTheJobGoesOn) {
  MapStore store;
  StandardErrorCapture capture;
  TcpLinkOptions options = OptionsOf(0, 2);
  options.handshake_timeout_s = 0.2;
  auto first = StartRank(options, 2, store);

  FileDescriptor garbage = Knock(0, store);
  const std::string request = "GET / HTTP/1.1\r\nHost: rank\r\n\r\n";
  send(garbage.get(), request.data(), request.size(), MSG_NOSIGNAL);
  EXPECT_TRUE(IsTurnedAway(garbage));

  FileDescriptor impostor = Knock(0, store);
  const Status wrong =
      HandshakeAsClient(impostor.get(), Purpose::kRankToRank,
                        {1, kGeneration, 0}, 0, std::string(32, 'U'), Soon())
          .status();
  EXPECT_EQ(wrong.code(), StatusCode::kUnauthenticated);
  EXPECT_TRUE(IsTurnedAway(impostor));

  FileDescriptor silent = Knock(0, store);
  FileDescriptor halfway = Knock(0, store);
  send(halfway.get(), "RING", 4, MSG_NOSIGNAL);
  EXPECT_TRUE(IsTurnedAway(silent));
  EXPECT_TRUE(IsTurnedAway(halfway));

  // Holds the token, but is nobody that is expected.
  FileDescriptor uninvited = Knock(0, store);
  EXPECT_OK(HandshakeAsClient(uninvited.get(), Purpose::kRankToRank,
                              {7, kGeneration, 0}, 0, kToken, Soon())
                .status());
  EXPECT_TRUE(IsTurnedAway(uninvited));

  auto second = StartRank(OptionsOf(1, 2), 2, store);
  EXPECT_OK(first.get());
  EXPECT_OK(second.get());
  const std::string log = capture.Text();
  EXPECT_TRUE(Has(log, "turned away the connection from 127.0.0.1:")) << log;
  EXPECT_TRUE(Has(log, "not a ring_keras peer")) << log;
  EXPECT_TRUE(Has(log, "wrong token")) << log;
  EXPECT_TRUE(Has(log, "too slow")) << log;
  EXPECT_TRUE(Has(log, "rank 7 channel 0 is not expected")) << log;
}

// More of them than are heard at a time, and none of them hurries.
RING_TEST(ACrowdOfSilentStrangersKeepsNobodyOut) {
  MapStore store;
  StandardErrorCapture capture;
  TcpLinkOptions options = OptionsOf(0, 1);
  options.handshake_timeout_s = 0.3;
  auto first = StartRank(options, 2, store);
  std::vector<FileDescriptor> strangers;
  for (int i = 0; i < 100; ++i) strangers.push_back(Knock(0, store));
  auto second = StartRank(OptionsOf(1, 1), 2, store);
  EXPECT_OK(first.get());
  EXPECT_OK(second.get());
}

// The stranger's own deadline is far beyond the test's.
RING_TEST(ASilentStrangerDoesNotHoldUpWhoIsDone) {
  MapStore store;
  TcpLinkOptions options = OptionsOf(0, 1);
  options.handshake_timeout_s = 1000;
  auto first = StartRank(options, 2, store);
  FileDescriptor silent = Knock(0, store);
  auto second = StartRank(OptionsOf(1, 1), 2, store);
  EXPECT_OK(first.get());
  EXPECT_OK(second.get());
  EXPECT_TRUE(IsTurnedAway(silent));
}

RING_TEST(ABadBindAddressIsAnErrorThatNamesTheVariable) {
  MapStore store;
  for (const char* address : {"0.0.0.0", "::", "192.0.2.1"}) {
    TcpLinkOptions options = OptionsOf(0, 1);
    options.bind_address = address;
    const Status status = ConnectTcpLinks(options, {1}, store, Soon()).status();
    EXPECT_FALSE(status.ok());
    EXPECT_TRUE(Has(status.message(), "RING_KERAS_BIND_ADDRESS") &&
                Has(status.message(), address))
        << status.message();
  }
}

RING_TEST(AMissingConnectionIsNamedAtTheDeadline) {
  MapStore store;
  auto first = StartRank(OptionsOf(0, 3), 2, store, Deadline::After(1));
  // Connects once, not three times.
  auto second = StartRank(OptionsOf(1, 1), 2, store);
  const Status status = first.get().status();
  EXPECT_EQ(status.code(), StatusCode::kDeadlineExceeded);
  EXPECT_TRUE(Has(status.message(),
                  "waited in vain for 3 connections from each of [1]") &&
              Has(status.message(), "RING_KERAS_TCP_STREAMS"))
      << status.message();
  second.wait();
}

}  // namespace
}  // namespace ring_keras
