// All ranks connect to each other while others try to get in.
#include "tf_ops/runtime/tcp_links.h"

#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/cpp/support/sockets.h"
#include "tests/cpp/support/standard_error_capture.h"
#include "tests/cpp/support/test.h"
#include "tf_ops/rendezvous/handshake.h"
#include "tf_ops/rendezvous/handshake_acceptor.h"
#include "tf_ops/runtime/link_addresses.h"

namespace ring_keras {
namespace {

using testing::Has;
using testing::PortOfNobody;
using testing::Soon;
using testing::StandardErrorCapture;

const std::string kToken(32, 'T');
constexpr uint64_t kGeneration = 4;

// What the ranks of a job, which are threads, have given to each topic.
class JobStore {
 public:
  void Give(const std::string& topic, int rank, const std::string& value) {
    std::lock_guard<std::mutex> lock(mutex_);
    values_[topic][rank] = value;
    changed_.notify_all();
  }
  // The values of ranks 0 to `count` - 1; fewer if they do not come in time.
  std::vector<std::string> WaitFor(const std::string& topic, size_t count,
                                   Deadline deadline) {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait_for(
        lock, std::chrono::duration<double>(deadline.RemainingSeconds()),
        [&] { return values_[topic].size() >= count; });
    std::vector<std::string> values;
    for (const auto& [rank, value] : values_[topic]) values.push_back(value);
    return values;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, std::map<int, std::string>> values_;
};

// One rank's way to it.
class RankStore : public Store {
 public:
  RankStore(JobStore& job, int rank, int size)
      : job_(job), rank_(rank), size_(static_cast<size_t>(size)) {}

  StatusOr<std::vector<std::string>> Gather(const std::string& topic,
                                            const std::string& value,
                                            Deadline deadline) override {
    job_.Give(topic, rank_, value);
    auto values = job_.WaitFor(topic, size_, deadline);
    if (values.size() == size_) return values;
    return Status(StatusCode::kDeadlineExceeded, topic);
  }
  Status Pause(Deadline deadline) override {
    std::this_thread::sleep_for(
        std::chrono::duration<double>(deadline.RemainingSeconds()));
    return Status::Ok();
  }
  void Watch(std::function<void(const RankEvent&)>) override {}
  void Leave(const std::string&) override {}

 private:
  JobStore& job_;
  const int rank_;
  const size_t size_;
};

TcpLinkOptions OptionsOf(int rank, int streams) {
  TcpLinkOptions options;
  options.rank = rank;
  options.generation = kGeneration;
  options.token = kToken;
  options.bind_addresses = {"127.0.0.1"};
  options.streams = streams;
  return options;
}

// A rank's connections, by rank.
struct Links {
  std::shared_ptr<Poller> poller;
  std::map<int, std::vector<std::unique_ptr<Stream>>> streams;
};

StatusOr<Links> Connect(const TcpLinkOptions& options,
                        const std::vector<int>& peers, Store& store,
                        Deadline deadline) {
  Links links;
  links.poller = std::move(Poller::Create().value());
  auto made = ConnectAll(options, peers, *links.poller, store, deadline);
  RING_KERAS_RETURN_IF_ERROR(made.status());
  for (NewLink& link : made.value()) {
    links.streams[link.peer] = std::move(link.streams);
  }
  return links;
}

template <typename RankStoreType = RankStore>
std::future<StatusOr<Links>> StartRank(const TcpLinkOptions& options, int size,
                                       JobStore& job,
                                       Deadline deadline = Soon()) {
  return std::async(std::launch::async, [=, &job] {
    std::vector<int> peers;
    for (int rank = 0; rank < size; ++rank) {
      if (rank != options.rank) peers.push_back(rank);
    }
    RankStoreType store(job, options.rank, size);
    return Connect(options, peers, store, deadline);
  });
}

// A rank 0 that listens on `port` and has nothing else to say.
void GiveForRankZero(JobStore& job, int port) {
  job.Give("tcp/addresses", 0, StrCat("1 127.0.0.1 ", port));
}

// A connection to where rank 0, the first that is there, listens, as anybody
// may make it.
FileDescriptor ConnectUntrusted(JobStore& job) {
  const auto values = job.WaitFor("tcp/addresses", 1, Soon());
  EXPECT_EQ(values.empty(), false);
  const auto addresses =
      ParseAddresses(0, values[0].substr(values[0].find(' ')));
  EXPECT_OK(addresses);
  const SocketAddress& address = addresses.value()[0];
  auto socket = ConnectOnce(address.host, address.port, Soon());
  EXPECT_OK(socket);
  return std::move(socket.value());
}

bool IsOver(const std::future<StatusOr<Links>>& rank) {
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
  JobStore store;
  std::vector<std::future<StatusOr<Links>>> ranks;
  for (int rank = 0; rank < kSize; ++rank) {
    ranks.push_back(StartRank(OptionsOf(rank, kStreams), kSize, store));
  }
  std::vector<Links> links;
  for (auto& rank : ranks) {
    StatusOr<Links> got = rank.get();
    ASSERT_OK(got);
    links.push_back(std::move(got.value()));
  }
  for (int a = 0; a < kSize; ++a) {
    ASSERT_EQ(links[a].streams.size(), kSize - 1);
    for (auto& [b, streams] : links[a].streams) {
      ASSERT_EQ(streams.size(), kStreams);
      for (int stream = 0; stream < kStreams; ++stream) {
        const std::string said = StrCat(a, " to ", b, " over ", stream);
        ASSERT_EQ(streams[stream]->TryWrite(said.data(), said.size()),
                  static_cast<ssize_t>(said.size()));
        Stream& twin = *links[b].streams.at(a)[stream];
        char heard[64];
        ssize_t got = 0;
        for (const Deadline deadline = Soon();
             got == 0 && !deadline.Expired();) {
          links[b].poller->Collect();
          got = twin.TryRead(heard, sizeof(heard));
        }
        ASSERT_TRUE(got > 0);
        EXPECT_EQ(std::string(heard, got), said);
      }
    }
  }
}

RING_TEST(UntrustedPeersAreDroppedAndTheJobGoesOn) {
  JobStore store;
  StandardErrorCapture capture;
  TcpLinkOptions options = OptionsOf(0, 2);
  options.handshake_timeout_s = 0.2;
  auto first = StartRank(options, 2, store);

  FileDescriptor garbage = ConnectUntrusted(store);
  const std::string request = "GET / HTTP/1.1\r\nHost: rank\r\n\r\n";
  send(garbage.get(), request.data(), request.size(), MSG_NOSIGNAL);
  EXPECT_TRUE(IsDropped(garbage));

  FileDescriptor impostor = ConnectUntrusted(store);
  const Status wrong =
      HandshakeAsClient(impostor.get(), Purpose::kRankToRank,
                        {1, kGeneration, 0}, 0, std::string(32, 'U'), Soon())
          .status();
  EXPECT_EQ(wrong.code(), StatusCode::kUnauthenticated);
  EXPECT_TRUE(IsDropped(impostor));

  FileDescriptor silent = ConnectUntrusted(store);
  FileDescriptor halfway = ConnectUntrusted(store);
  send(halfway.get(), "RING", 4, MSG_NOSIGNAL);
  EXPECT_TRUE(IsDropped(silent));
  EXPECT_TRUE(IsDropped(halfway));

  // Holds the token, but is nobody that is expected.
  FileDescriptor uninvited = ConnectUntrusted(store);
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
  JobStore store;
  StandardErrorCapture capture;
  TcpLinkOptions options = OptionsOf(0, 2);
  options.handshake_timeout_s = 1000;
  auto first = StartRank(options, 3, store);
  std::vector<FileDescriptor> silent;
  for (int i = 0; i < 500; ++i) silent.push_back(ConnectUntrusted(store));
  auto second = StartRank(OptionsOf(1, 2), 3, store);
  for (int i = 0; i < 500; ++i) silent.push_back(ConnectUntrusted(store));
  auto third = StartRank(OptionsOf(2, 2), 3, store);
  EXPECT_OK(first.get());
  EXPECT_OK(second.get());
  EXPECT_OK(third.get());
  EXPECT_TRUE(Has(capture.Text(), "too many unauthenticated connections"));
}

// What the store knows, a rank that cannot be reached need not be waited for.
RING_TEST(APeerThatDiedIsNotTriedUntilTheDeadline) {
  class StoreOfADeath : public RankStore {
   public:
    using RankStore::RankStore;
    Status Pause(Deadline) override {
      return Status(StatusCode::kPeerLost, "rank 0 was killed");
    }
  };
  JobStore store;
  GiveForRankZero(store, PortOfNobody());
  const Status status =
      StartRank<StoreOfADeath>(OptionsOf(1, 1), 2, store, Deadline::After(1000))
          .get()
          .status();
  EXPECT_EQ(status.code(), StatusCode::kPeerLost);
  EXPECT_TRUE(Has(status.message(), "rank 0 was killed")) << status.message();
}

// Flooded, when the first attempt came, and not any more.
RING_TEST(APeerThatDropsOneAttemptIsTriedAgain) {
  JobStore store;
  auto listener = Listen("127.0.0.1", 0);
  ASSERT_OK(listener);
  const int port = LocalPort(listener.value().get());
  GiveForRankZero(store, port);
  auto rank = StartRank(OptionsOf(1, 1), 2, store);
  ASSERT_OK(testing::Accept(listener.value(), Soon()).status());

  rendezvous::HandshakeAcceptorOptions acceptor_options;
  acceptor_options.purpose = Purpose::kRankToRank;
  acceptor_options.rank = 0;
  acceptor_options.generation = kGeneration;
  acceptor_options.token = kToken;
  acceptor_options.handshake_timeout_s = 30;
  acceptor_options.max_untrusted = 10;
  rendezvous::HandshakeAcceptor acceptor(
      acceptor_options, std::move(listener.value()),
      std::move(rendezvous::Selector::Make().value()),
      [](const HandshakeParty&, const std::string&) {
        return rendezvous::Admission();
      });
  std::vector<rendezvous::TrustedConnection> served;
  const Deadline deadline = Soon();
  while (!IsOver(rank) && !deadline.Expired()) {
    pollfd entry = {acceptor.descriptor(), POLLIN, 0};
    poll(&entry, 1, 10);
    for (auto& connection : acceptor.Serve()) {
      served.push_back(std::move(connection));
    }
  }
  const StatusOr<Links> links = rank.get();
  ASSERT_OK(links);
  EXPECT_EQ(links.value().streams.at(0).size(), 1u);
  EXPECT_FALSE(served.empty());
}

// It may come up, as long as init() may take, however soon a host that does not
// answer counts as cut off later.
RING_TEST(APeerThatCannotBeReachedIsTriedUntilTheDeadline) {
  JobStore store;
  const int port = PortOfNobody();
  GiveForRankZero(store, port);
  TcpLinkOptions options = OptionsOf(1, 1);
  options.unreachable_after_s = 0.2;
  const Status status =
      StartRank(options, 2, store, Deadline::After(1)).get().status();
  EXPECT_EQ(status.code(), StatusCode::kDeadlineExceeded);
  EXPECT_TRUE(Has(status.message(),
                  StrCat("rank 1 has no connection to rank 0 yet: nothing came "
                         "of connecting to 127.0.0.1:",
                         port)) &&
              Has(status.message(), "RING_KERAS_INIT_TIMEOUT_S"))
      << status.message();
}

// The peer's own deadline is far beyond the test's.
RING_TEST(ASilentPeerDoesNotHoldUpWhoIsDone) {
  JobStore store;
  TcpLinkOptions options = OptionsOf(0, 1);
  options.handshake_timeout_s = 1000;
  auto first = StartRank(options, 2, store);
  FileDescriptor silent = ConnectUntrusted(store);
  auto second = StartRank(OptionsOf(1, 1), 2, store);
  EXPECT_OK(first.get());
  EXPECT_OK(second.get());
  EXPECT_TRUE(IsDropped(silent));
}

RING_TEST(ABadBindAddressIsAnErrorThatNamesTheVariable) {
  JobStore store;
  for (const char* address : {"0.0.0.0", "::", "192.0.2.1"}) {
    TcpLinkOptions options = OptionsOf(0, 1);
    options.bind_addresses = {address};
    RankStore own(store, 0, 2);
    const Status status = Connect(options, {1}, own, Soon()).status();
    EXPECT_FALSE(status.ok());
    EXPECT_TRUE(Has(status.message(), "RING_KERAS_BIND_ADDRESS") &&
                Has(status.message(), address))
        << status.message();
  }
}

RING_TEST(AMissingConnectionIsNamedAtTheDeadline) {
  JobStore store;
  // Says where it listens, as far as it does, and never connects.
  store.Give("tcp/addresses", 1, "3 127.0.0.1 1");
  const Status status =
      StartRank(OptionsOf(0, 3), 2, store, Deadline::After(1)).get().status();
  EXPECT_EQ(status.code(), StatusCode::kDeadlineExceeded);
  EXPECT_TRUE(Has(status.message(), "rank 0 has no connection to rank 1 yet. "))
      << status.message();
}

// As 500 ranks would need beyond the usual limit of 1,024.
RING_TEST(ARankMayOpenADescriptorForEachConnection) {
  rlimit before = {};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  rlimit low = before;
  low.rlim_cur = 64;
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &low), 0);
  constexpr int kStreams = 50;
  JobStore store;
  auto first = StartRank(OptionsOf(0, kStreams), 2, store);
  auto second = StartRank(OptionsOf(1, kStreams), 2, store);
  EXPECT_OK(first.get());
  EXPECT_OK(second.get());
  setrlimit(RLIMIT_NOFILE, &before);

  const Status status =
      StartRank(OptionsOf(0, 1 << 30), 2, store).get().status();
  EXPECT_EQ(status.code(), StatusCode::kResourceExhausted);
  EXPECT_TRUE(Has(status.message(), "ulimit -Hn")) << status.message();
}

// Nothing that a rank waits for here comes: an answer, a connection.
RING_TEST(AnInterruptionEndsEveryWait) {
  const auto listener = Listen("127.0.0.1", 0);
  ASSERT_OK(listener.status());
  const int port = LocalPort(listener.value().get());
  std::atomic<int> asked{0};
  const Interruption interruption = [&] { return ++asked == 3; };
  const auto end_of = [&](int rank, int expected_from, JobStore& job) {
    asked = 0;
    RankStore store(job, rank, 2);
    return Connect(OptionsOf(rank, 1), {expected_from}, store,
                   Soon().EndedBy(&interruption))
        .status()
        .code();
  };
  JobStore silent;
  GiveForRankZero(silent, port);
  EXPECT_EQ(end_of(1, 0, silent), StatusCode::kInterrupted);
  JobStore late;
  late.Give("tcp/addresses", 1, "1 127.0.0.1 1");
  EXPECT_EQ(end_of(0, 1, late), StatusCode::kInterrupted);
}

}  // namespace
}  // namespace ring_keras
