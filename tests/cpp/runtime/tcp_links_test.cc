// Ranks connect to each other while others try to get in.
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

#include "tests/cpp/support/sockets.h"
#include "tests/cpp/support/standard_error_capture.h"
#include "tests/cpp/support/test.h"
#include "tf_ops/rendezvous/handshake.h"
#include "tf_ops/rendezvous/handshake_acceptor.h"

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
FileDescriptor ConnectUntrusted(int rank, Store& store) {
  const auto text = store.Get(StrCat("tcp/address/", rank), Soon());
  EXPECT_OK(text);
  const size_t space = text.value().find(' ');
  auto socket = ConnectOnce(text.value().substr(0, space),
                            std::stoi(text.value().substr(space + 1)), Soon());
  EXPECT_OK(socket);
  return std::move(socket.value());
}

bool IsOver(const std::future<StatusOr<TcpLinks>>& rank) {
  return rank.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
}

// Whether the other side has closed the connection, or does so soon.
bool IsDropped(const FileDescriptor& socket) {
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
      for (int stream = 0; stream < kStreams; ++stream) {
        const std::string said = StrCat(a, " to ", b, " over ", stream);
        ASSERT_EQ(send(sockets[stream].get(), said.data(), said.size(), 0),
                  static_cast<ssize_t>(said.size()));
        const FileDescriptor& twin = links[b].at(a)[stream];
        ASSERT_TRUE(WaitUntilReady(twin.get(), POLLIN, Soon()).value());
        char heard[64];
        const ssize_t got = recv(twin.get(), heard, sizeof(heard), 0);
        EXPECT_EQ(std::string(heard, got), said);
      }
    }
  }
}

RING_TEST(UntrustedPeersAreDroppedAndTheJobGoesOn) {
  MapStore store;
  StandardErrorCapture capture;
  TcpLinkOptions options = OptionsOf(0, 2);
  options.handshake_timeout_s = 0.2;
  auto first = StartRank(options, 2, store);

  FileDescriptor garbage = ConnectUntrusted(0, store);
  const std::string request = "GET / HTTP/1.1\r\nHost: rank\r\n\r\n";
  send(garbage.get(), request.data(), request.size(), MSG_NOSIGNAL);
  EXPECT_TRUE(IsDropped(garbage));

  FileDescriptor impostor = ConnectUntrusted(0, store);
  const Status wrong =
      HandshakeAsClient(impostor.get(), Purpose::kRankToRank,
                        {1, kGeneration, 0}, 0, std::string(32, 'U'), Soon())
          .status();
  EXPECT_EQ(wrong.code(), StatusCode::kUnauthenticated);
  EXPECT_TRUE(IsDropped(impostor));

  FileDescriptor silent = ConnectUntrusted(0, store);
  FileDescriptor halfway = ConnectUntrusted(0, store);
  send(halfway.get(), "RING", 4, MSG_NOSIGNAL);
  EXPECT_TRUE(IsDropped(silent));
  EXPECT_TRUE(IsDropped(halfway));

  // Holds the token, but is nobody that is expected.
  FileDescriptor uninvited = ConnectUntrusted(0, store);
  EXPECT_EQ(HandshakeAsClient(uninvited.get(), Purpose::kRankToRank,
                              {7, kGeneration, 0}, 0, kToken, Soon())
                .status()
                .code(),
            StatusCode::kUnauthenticated);
  EXPECT_TRUE(IsDropped(uninvited));

  auto second = StartRank(OptionsOf(1, 2), 2, store);
  EXPECT_OK(first.get());
  EXPECT_OK(second.get());
  const std::string log = capture.Text();
  EXPECT_TRUE(Has(log, "rank 0 dropped the connection from 127.0.0.1:")) << log;
  EXPECT_TRUE(Has(log, "not a ring_keras peer")) << log;
  EXPECT_TRUE(Has(log, "wrong token")) << log;
  EXPECT_TRUE(Has(log, "too slow")) << log;
  EXPECT_TRUE(Has(log, "rank 7, but stream 0 of it is not expected")) << log;
}

// Their own deadline is far beyond the test's: the oldest must go for the
// newest.
RING_TEST(AThousandSilentConnectionsKeepNobodyOut) {
  MapStore store;
  StandardErrorCapture capture;
  TcpLinkOptions options = OptionsOf(0, 2);
  options.handshake_timeout_s = 1000;
  auto first = StartRank(options, 3, store);
  std::vector<FileDescriptor> silent;
  for (int i = 0; i < 500; ++i) silent.push_back(ConnectUntrusted(0, store));
  auto second = StartRank(OptionsOf(1, 2), 3, store);
  for (int i = 0; i < 500; ++i) silent.push_back(ConnectUntrusted(0, store));
  auto third = StartRank(OptionsOf(2, 2), 3, store);
  EXPECT_OK(first.get());
  EXPECT_OK(second.get());
  EXPECT_OK(third.get());
  EXPECT_TRUE(Has(capture.Text(), "too many unauthenticated connections"));
}

// What the store knows, a rank that cannot be reached need not be waited for.
RING_TEST(APeerThatDiedIsNotTriedUntilTheDeadline) {
  class StoreOfADeath : public MapStore {
   public:
    StatusOr<std::string> Get(const std::string& key,
                              Deadline deadline) override {
      if (key == "tcp/address/0") return MapStore::Get(key, deadline);
      return Status(StatusCode::kPeerLost, "rank 0 was killed");
    }
  };
  StoreOfADeath store;
  // Nobody listens there any more.
  const int port = [] {
    auto listener = Listen("127.0.0.1", 0);
    return LocalPort(listener.value().get());
  }();
  ASSERT_OK(store.Set("tcp/address/0", StrCat("127.0.0.1 ", port)));
  const Status status =
      StartRank(OptionsOf(1, 1), 2, store, Deadline::After(1000))
          .get()
          .status();
  EXPECT_EQ(status.code(), StatusCode::kPeerLost);
  EXPECT_TRUE(Has(status.message(), "rank 0 was killed")) << status.message();
}

// Busy, when the first attempt came, and not any more.
RING_TEST(APeerThatIsSlowOnceIsTriedAgain) {
  MapStore store;
  auto listener = Listen("127.0.0.1", 0);
  ASSERT_OK(listener);
  const int port = LocalPort(listener.value().get());
  ASSERT_OK(store.Set("tcp/address/0", StrCat("127.0.0.1 ", port)));
  TcpLinkOptions options = OptionsOf(1, 1);
  options.connect_attempt_s = 0.2;
  auto rank = StartRank(options, 2, store);
  const auto unanswered = testing::Accept(listener.value(), Soon());
  ASSERT_OK(unanswered);

  rendezvous::HandshakeAcceptorOptions acceptor_options;
  acceptor_options.purpose = Purpose::kRankToRank;
  acceptor_options.rank = 0;
  acceptor_options.generation = kGeneration;
  acceptor_options.token = kToken;
  acceptor_options.handshake_timeout_s = 30;
  acceptor_options.max_untrusted = 10;
  rendezvous::HandshakeAcceptor acceptor(
      acceptor_options, std::move(listener.value()),
      [](const HandshakeParty&, const std::string&) {
        return rendezvous::Admission();
      });
  std::vector<rendezvous::TrustedConnection> served;
  const Deadline deadline = Soon();
  while (!IsOver(rank) && !deadline.Expired()) {
    std::vector<pollfd> entries;
    acceptor.AddPollEntries(&entries);
    poll(entries.data(), entries.size(), 10);
    for (auto& connection : acceptor.Serve(entries.data())) {
      served.push_back(std::move(connection));
    }
  }
  const StatusOr<TcpLinks> links = rank.get();
  ASSERT_OK(links);
  EXPECT_EQ(links.value().at(0).size(), 1u);
  EXPECT_FALSE(served.empty());
}

// The peer's own deadline is far beyond the test's.
RING_TEST(ASilentPeerDoesNotHoldUpWhoIsDone) {
  MapStore store;
  TcpLinkOptions options = OptionsOf(0, 1);
  options.handshake_timeout_s = 1000;
  auto first = StartRank(options, 2, store);
  FileDescriptor silent = ConnectUntrusted(0, store);
  auto second = StartRank(OptionsOf(1, 1), 2, store);
  EXPECT_OK(first.get());
  EXPECT_OK(second.get());
  EXPECT_TRUE(IsDropped(silent));
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
