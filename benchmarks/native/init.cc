// How long init() takes, by the number of ranks: a real store in a process of
// its own, and ranks that prove themselves to it, all starting at the same
// moment.
//
//   init_benchmark clients RANKS PROCESSES
//   init_benchmark engines RANKS HOSTS
//
// "clients" are what a rank's init() asks of the store, as threads of a few
// processes, since thousands of processes need more memory than they are worth.
// "engines" are whole ranks without Python, a process each, on so many
// pretended hosts: they share memory on a host, and connect to every rank of
// the others.
//
// Prints one line: seconds until the last rank was in, seconds until all had
// left, seconds of the store's processor time, MiB that the store held at most.
#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tf_ops/rendezvous/tcp_store.h"
#include "tf_ops/rendezvous/tcp_store_server.h"
#include "tf_ops/runtime/job.h"
#include "tf_ops/runtime/peer_card.h"

namespace ring_keras {
namespace {

const std::string kToken(32, 't');
constexpr double kLimitS = 300;

[[noreturn]] void Die(const std::string& why) {
  std::fprintf(stderr, "%s\n", why.c_str());
  std::_Exit(1);
}

void Check(const Status& status) {
  if (!status.ok()) Die(status.message());
}

// Seconds on a clock that all processes share.
double Now() {
  return std::chrono::duration<double>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

// A pipe for numbers.
class Channel {
 public:
  Channel() {
    if (pipe2(ends_, O_CLOEXEC) != 0) Die("no pipe");
  }
  void Send(double value) {
    if (write(ends_[1], &value, sizeof(value)) != sizeof(value))
      Die("no reader");
  }
  double Receive() {
    double value = 0;
    if (read(ends_[0], &value, sizeof(value)) != sizeof(value))
      Die("no writer");
    return value;
  }

 private:
  int ends_[2];
};

void AllowDescriptors() {
  rlimit limit = {};
  getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
}

pid_t Spawn(const std::function<void()>& body) {
  const pid_t pid = fork();
  if (pid < 0) Die("no process");
  if (pid > 0) return pid;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  AllowDescriptors();
  body();
  std::_Exit(0);
}

struct Channels {
  Channel port, go, in, leave, left, store;
};

void RunStore(int ranks, Channels& channels) {
  TcpStoreServerOptions options;
  options.size = ranks;
  options.token = kToken;
  auto server = TcpStoreServer::Start(options);
  Check(server.status());
  channels.port.Send(server.value()->port());
  channels.store.Receive();
  rusage usage = {};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) +
           static_cast<double>(time.tv_usec) * 1e-6;
  };
  channels.left.Send(seconds(usage.ru_utime) + seconds(usage.ru_stime));
  channels.left.Send(static_cast<double>(usage.ru_maxrss) / 1024);
}

// What init() asks of the store where every rank is on a host of its own.
std::unique_ptr<TcpStore> JoinAsClient(int rank, int ranks, int port) {
  TcpStoreOptions options;
  options.host = "127.0.0.1";
  options.port = port;
  options.token = kToken;
  options.rank = rank;
  options.size = ranks;
  options.host_name = StrCat("host", rank);
  options.connect_deadline = Deadline::After(kLimitS);
  auto connected = ConnectTcpStore(options);
  Check(connected.status());
  PeerCard card = MakePeerCard(options.host_name);
  card.boot_id = StrCat("00000000-0000-0000-0000-", 100000000000 + rank);
  card.pid = rank;
  card.segment_descriptor = 3;
  for (uint8_t& byte : card.nonce) byte = static_cast<uint8_t>(std::rand());
  const std::string address =
      StrCat("10.0.", rank / 250, ".", rank % 250, " ", 30000 + rank);
  const std::pair<const char*, std::string> gathers[] = {
      {"card", Encode(card)},
      {"unattached", ""},
      {"tcp/address", address},
      {"tcp/connected", ""},
      {"ready", ""}};
  for (const auto& [topic, value] : gathers) {
    Check(connected.value()
              ->Gather(topic, value, Deadline::After(kLimitS))
              .status());
  }
  return std::move(connected.value());
}

void RunClients(int first, int last, int ranks, Channels& channels) {
  const int port = static_cast<int>(channels.go.Receive());
  std::vector<std::unique_ptr<TcpStore>> stores(last - first);
  const auto for_all = [&](const std::function<void(int)>& body) {
    std::vector<std::thread> threads;
    for (int rank = first; rank < last; ++rank)
      threads.emplace_back(body, rank);
    for (std::thread& thread : threads) thread.join();
  };
  for_all([&](int rank) {
    stores[rank - first] = JoinAsClient(rank, ranks, port);
  });
  channels.in.Send(Now());
  channels.leave.Receive();
  for_all([&](int rank) { stores[rank - first].reset(); });
  channels.left.Send(Now());
}

void RunEngine(int rank, int ranks, int hosts, Channels& channels) {
  InitOptions options;
  options.rank = rank;
  options.size = ranks;
  options.store_host = "127.0.0.1";
  options.store_port = static_cast<int>(channels.go.Receive());
  options.token = kToken;
  options.host_name = StrCat("host", rank % hosts);
  options.init_timeout_s = kLimitS;
  auto job = Job::Start(options);
  Check(job.status());
  channels.in.Send(Now());
  channels.leave.Receive();
  job.value()->Leave("done");
  job.value().reset();
  channels.left.Send(Now());
}

double Latest(Channel& channel, int count) {
  double latest = 0;
  for (int i = 0; i < count; ++i) latest = std::max(latest, channel.Receive());
  return latest;
}

void Run(const std::string& kind, int ranks, int division) {
  Channels channels;
  const pid_t store = Spawn([&] { RunStore(ranks, channels); });
  const double port = channels.port.Receive();
  std::vector<pid_t> processes;
  if (kind == "clients") {
    for (int i = 0; i < division; ++i) {
      processes.push_back(Spawn([&, i] {
        RunClients(ranks * i / division, ranks * (i + 1) / division, ranks,
                   channels);
      }));
    }
  } else {
    for (int rank = 0; rank < ranks; ++rank) {
      processes.push_back(
          Spawn([&, rank] { RunEngine(rank, ranks, division, channels); }));
    }
  }
  const int count = static_cast<int>(processes.size());
  const double began = Now();
  for (int i = 0; i < count; ++i) channels.go.Send(port);
  const double in_s = Latest(channels.in, count) - began;
  const double leaving = Now();
  for (int i = 0; i < count; ++i) channels.leave.Send(0);
  const double left_s = Latest(channels.left, count) - leaving;
  for (const pid_t pid : processes) waitpid(pid, nullptr, 0);
  channels.store.Send(0);
  const double store_s = channels.left.Receive();
  const double store_mib = channels.left.Receive();
  waitpid(store, nullptr, 0);
  std::printf("%.3f %.3f %.3f %.0f\n", in_s, left_s, store_s, store_mib);
}

}  // namespace
}  // namespace ring_keras

int main(int argc, char** argv) {
  const std::string kind = argc == 4 ? argv[1] : "";
  if (kind != "clients" && kind != "engines") {
    std::fprintf(stderr,
                 "usage: %s clients RANKS PROCESSES | engines RANKS HOSTS\n",
                 argv[0]);
    return 2;
  }
  // What hangs ends here, and takes what it has started along.
  alarm(static_cast<unsigned>(ring_keras::kLimitS));
  ring_keras::Run(kind, std::atoi(argv[2]), std::atoi(argv[3]));
  return 0;
}
