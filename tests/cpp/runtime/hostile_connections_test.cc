// A job that trains while hundreds of connections of those who do not belong to
// it come to each of its listeners.
#include <dirent.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <functional>
#include <list>
#include <set>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "tests/cpp/support/hostile_peer.h"
#include "tests/cpp/support/run_ranks.h"
#include "tests/cpp/support/test.h"
#include "tf_ops/rendezvous/limits.h"
#include "tf_ops/rendezvous/wire.h"

namespace ring_keras {
namespace {

using testing::HostilePeer;
using testing::Hostility;
using testing::Listener;
using testing::Rank;
using testing::RankOptions;
using testing::RunRanks;

constexpr int kPeersEach = 400;  // At each listener.
constexpr size_t kOpenAtOnce = 150;
constexpr double kDeadlineS = 100;

// This process's open descriptors.
std::vector<std::string> Descriptors() {
  std::vector<std::string> targets;
  DIR* folder = opendir("/proc/self/fd");
  while (const dirent* entry = readdir(folder)) {
    char target[256];
    const ssize_t length =
        readlinkat(dirfd(folder), entry->d_name, target, sizeof(target));
    if (length > 0) targets.emplace_back(target, length);
  }
  closedir(folder);
  return targets;
}

size_t ResidentBytes() {
  std::ifstream file("/proc/self/statm");
  size_t all = 0;
  size_t resident = 0;
  file >> all >> resident;
  return resident * static_cast<size_t>(sysconf(_SC_PAGESIZE));
}

// Who says what it is, when it turns a client down: a rank does not serve the
// store, nor the store another one.
Listener Identify(int port) {
  ClientHandshake client(Purpose::kStore, {1, 0, 0}, -1, std::string(32, 't'));
  auto socket = ConnectOnce("127.0.0.1", port, Deadline::After(30));
  EXPECT_OK(socket);
  const std::string hello = client.Start().value();
  const int fd = socket.value().get();
  EXPECT_EQ(send(fd, hello.data(), hello.size(), MSG_NOSIGNAL),
            static_cast<ssize_t>(hello.size()));
  EXPECT_TRUE(WaitUntilReady(fd, POLLIN, Deadline::After(30)).value());
  std::string answer(64, '\0');
  EXPECT_TRUE(recv(fd, answer.data(), answer.size(), 0) >= 21);
  const auto type = static_cast<rendezvous::MessageType>(answer[7]);
  if (type == rendezvous::MessageType::kChallenge) return {port};
  return {port, Purpose::kRankToRank,
          rendezvous::IntegerAt<int32_t>(answer, 9)};
}

// Every TCP socket of this process that listens.
std::vector<Listener> Listeners() {
  const std::vector<std::string> open = Descriptors();
  const std::set<std::string> sockets(open.begin(), open.end());
  std::ifstream file("/proc/self/net/tcp");
  std::vector<Listener> listeners;
  std::string line;
  while (std::getline(file, line)) {
    std::istringstream words(line);
    std::string number, local, remote, state, inode;
    words >> number >> local >> remote >> state;
    for (int i = 0; i < 6; ++i) words >> inode;
    if (state != "0A" || sockets.count("socket:[" + inode + "]") == 0) continue;
    const std::string port = local.substr(local.find(':') + 1);
    listeners.push_back(Identify(std::stoi(port, nullptr, 16)));
  }
  return listeners;
}

// All that come to one listener; returns once each has been dropped.
void Attack(const Listener& listener, std::atomic<int>* dropped_count) {
  const std::string token(32, 't');
  const auto recorded = RecordHandshake(listener, token);
  const Deadline deadline = Deadline::After(kDeadlineS);
  std::list<HostilePeer> open;
  int come = 0;
  while ((come < kPeersEach || !open.empty()) && !deadline.Expired()) {
    while (come < kPeersEach && open.size() < kOpenAtOnce) {
      const auto kind = Hostility{come++ % testing::kHostilityCount};
      open.emplace_back(kind, listener, token, recorded);
    }
    *dropped_count += static_cast<int>(open.remove_if([](HostilePeer& peer) {
      if (peer.GoesOn()) return false;
      EXPECT_FALSE(peer.trusted());
      return true;
    }));
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
}

// One step of a training; whether `ends` on the first rank. Its result tells
// ranks and steps apart.
bool Step(Rank& self, int step, bool ends) {
  std::vector<float> data(100'000, static_cast<float>(step + self.rank));
  data[0] = self.rank == 0 && ends ? 1 : 0;
  Request request;
  request.kind = CollectiveKind::kAllreduce;
  request.name = "gradients";
  request.dtype = DataType::kFloat32;
  request.inputs = {{data.data(), {static_cast<int64_t>(data.size())}}};
  request.outputs = {data.data()};
  const Status status = self.engine->Run(std::move(request));
  EXPECT_OK(status);
  for (size_t i = 1; i < data.size(); ++i) {
    if (data[i] == static_cast<float>(2 * step + 1)) continue;
    EXPECT_EQ(data[i], static_cast<float>(2 * step + 1)) << step;
    return true;
  }
  return data[0] != 0 || !status.ok();
}

// Milliseconds a step, until `ends()` on the first rank. It computes between
// two steps, and leaves the others the processors.
double Train(Rank& self, const std::function<bool(int)>& ends) {
  using Clock = std::chrono::steady_clock;
  Clock::duration taken = {};
  int step = 0;
  for (bool ended = false; !ended; ++step) {
    if (self.rank == 0) {
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    const auto start = Clock::now();
    ended = Step(self, step, self.rank == 0 && ends(step));
    taken += Clock::now() - start;
  }
  return std::chrono::duration<double, std::milli>(taken).count() / step;
}

RING_TEST(AJobTrainsOnWhileHostileConnectionsCome) {
  RankOptions setup;
  setup.hosts = 2;
  setup.transport = "tcp";
  // So that ranks listen as long as the job lasts, as they do in a large one.
  setup.max_direct_peers = 0;
  RunRanks(setup, [](Rank& self) {
    if (self.rank != 0) {
      Train(self, nullptr);
      Train(self, nullptr);
      EXPECT_OK(self.store->Gather("done", "", Deadline::After(30)).status());
      return;
    }
    const std::vector<Listener> listeners = Listeners();
    ASSERT_EQ(listeners.size(), 3u) << "the store and two ranks";
    const size_t nbytes_before = ResidentBytes();
    const size_t open_before = Descriptors().size();
    std::atomic<int> dropped{0};
    std::atomic<int> busy{static_cast<int>(listeners.size())};
    std::vector<std::thread> attackers;
    for (const Listener& listener : listeners) {
      attackers.emplace_back([&, listener] {
        Attack(listener, &dropped);
        --busy;
      });
    }
    // The ranks' connection is made now, among the others.
    size_t most_open = 0;
    const double attacked_ms = Train(self, [&](int step) {
      if (step % 16 == 0) {
        most_open = std::max(most_open, Descriptors().size());
      }
      return busy == 0;
    });
    for (std::thread& attacker : attackers) attacker.join();
    const int all = kPeersEach * static_cast<int>(listeners.size());
    EXPECT_EQ(dropped.load(), all);
    // The attackers' ends, and of the others no more than may be unproven.
    const size_t unproven = 2 + kSpareUnauthenticatedConnections;
    EXPECT_LE(most_open,
              open_before + listeners.size() * (kOpenAtOnce + unproven) + 20);
    const size_t open_after = Descriptors().size();
    EXPECT_LE(open_after, open_before + 2 * 2 + 2);  // The ranks' own.
    const size_t nbytes_after = ResidentBytes();
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
    EXPECT_LE(nbytes_after, nbytes_before + (size_t{32} << 20));
#endif
    const double alone_ms = Train(self, [](int step) { return step == 200; });
    std::printf(
        "%d hostile connections at %zu listeners: %.2f ms a step, %.2f ms "
        "without; %zu descriptors before, %zu at the most, %zu after; %zu MiB "
        "before, %zu MiB after\n",
        all, listeners.size(), attacked_ms, alone_ms, open_before, most_open,
        open_after, nbytes_before >> 20, nbytes_after >> 20);
    EXPECT_OK(self.store->Gather("done", "", Deadline::After(30)).status());
  });
}

}  // namespace
}  // namespace ring_keras
