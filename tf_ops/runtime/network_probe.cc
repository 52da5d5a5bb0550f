#include "tf_ops/runtime/network_probe.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <map>
#include <memory>
#include <utility>

#include "tf_ops/common/descriptors.h"
#include "tf_ops/common/interfaces.h"
#include "tf_ops/common/socket.h"

namespace ring_keras {
namespace {

// Between attempts at one address.
constexpr double kBackoffS = 0.2;

// Attempts to reach one candidate, one after the other.
class Probe {
 public:
  Probe(const ProbeOptions& options, int host, size_t candidate,
        const Candidate& address, int expected_rank)
      : host(host),
        candidate(candidate),
        options_(options),
        address_(address),
        expected_rank_(expected_rank) {}

  const int host;
  const size_t candidate;

  bool reached() const { return reached_; }
  // Connected, so that only the peer's process can be slow.
  bool connected() const { return connected_; }
  bool under_way() const { return fd_.valid(); }
  // This host's address on the way.
  const std::string& local_address() const { return local_address_; }
  std::string failure() const {
    return failure_.empty() ? "no answer" : failure_;
  }

  // -1: nothing to wait for.
  pollfd Waiting() const {
    return {fd_.get(), static_cast<short>(connected_ ? POLLIN : POLLOUT), 0};
  }

  void BeginIfDue() {
    if (reached_ || under_way() || !next_attempt_.Expired()) return;
    auto begun = BeginConnecting(address_.address, address_.port);
    if (!begun.ok()) return Fail(begun.status());
    fd_ = std::move(begun.value());
  }

  // Its descriptor is ready.
  void Advance() {
    const Status status = connected_ ? ContinueHandshake() : BeginHandshake();
    if (!status.ok()) return Fail(status);
    if (handshake_->proven()) {
      reached_ = true;
      fd_.Close();
    }
  }

 private:
  Status BeginHandshake() {
    RING_KERAS_RETURN_IF_ERROR(ConnectResult(fd_.get()));
    connected_ = true;
    local_address_ = LocalHost(fd_.get());
    handshake_ = std::make_unique<ClientHandshake>(
        Purpose::kRankToRank, options_.self, expected_rank_, options_.token);
    StatusOr<std::string> hello = handshake_->Start();
    RING_KERAS_RETURN_IF_ERROR(hello.status());
    return Send(hello.value());
  }

  Status ContinueHandshake() {
    std::string bytes(handshake_->bytes_wanted(), '\0');
    const ssize_t got = recv(fd_.get(), bytes.data(), bytes.size(), 0);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return Status::Ok();
    if (got <= 0) {
      return Status(StatusCode::kPeerLost, "the connection was closed");
    }
    bytes.resize(static_cast<size_t>(got));
    std::string reply;
    RING_KERAS_RETURN_IF_ERROR(handshake_->Receive(bytes, &reply));
    return Send(reply);
  }

  // A handshake's messages fit into the socket's buffer.
  Status Send(const std::string& bytes) {
    const ssize_t sent =
        send(fd_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent == static_cast<ssize_t>(bytes.size())) return Status::Ok();
    return Status(StatusCode::kPeerLost, "the connection was closed");
  }

  void Fail(const Status& status) {
    failure_ = status.message();
    std::replace(failure_.begin(), failure_.end(), '\n', ' ');
    fd_.Close();
    connected_ = false;
    next_attempt_ = Deadline::After(kBackoffS);
  }

  const ProbeOptions& options_;
  const Candidate& address_;
  const int expected_rank_;
  FileDescriptor fd_;
  std::unique_ptr<ClientHandshake> handshake_;
  Deadline next_attempt_ = Deadline::After(0);
  bool connected_ = false;
  bool reached_ = false;
  std::string local_address_;
  std::string failure_;
};

using Probes = std::vector<std::unique_ptr<Probe>>;

// When nothing more is to be expected of a host.
class ProbeDeadlines {
 public:
  explicit ProbeDeadlines(const ProbeOptions& options)
      : settle_(Deadline::After(options.settle_s)),
        give_up_(Deadline::After(options.give_up_s)),
        busy_(Deadline::After(options.busy_s)) {}

  bool AreOverFor(const std::vector<const Probe*>& probes_of_host) const {
    bool reached = false, connected = false, under_way = false;
    for (const Probe* probe : probes_of_host) {
      reached |= probe->reached();
      connected |= probe->under_way() && probe->connected();
      under_way |= probe->under_way();
    }
    if (connected) return busy_.Expired();
    if (!reached) return give_up_.Expired();
    return !under_way || settle_.Expired();
  }

 private:
  const Deadline settle_;
  const Deadline give_up_;
  const Deadline busy_;
};

bool AllSettled(const Probes& probes, const ProbeDeadlines& deadlines) {
  std::map<int, std::vector<const Probe*>> by_host;
  for (const auto& probe : probes) by_host[probe->host].push_back(probe.get());
  return std::all_of(by_host.begin(), by_host.end(), [&](const auto& entry) {
    return deadlines.AreOverFor(entry.second);
  });
}

Status Run(const Probes& probes, const ProbeOptions& options,
           Deadline deadline) {
  constexpr int kTurnMs = 20;
  const ProbeDeadlines deadlines(options);
  while (true) {
    std::vector<pollfd> waiting;
    for (const auto& probe : probes) {
      probe->BeginIfDue();
      waiting.push_back(probe->Waiting());
    }
    if (AllSettled(probes, deadlines)) return Status::Ok();
    if (deadline.Expired()) {
      return Status(StatusCode::kDeadlineExceeded,
                    "there was no time to try the other hosts' addresses");
    }
    if (deadline.Interrupted()) return Interrupted();
    poll(waiting.data(), waiting.size(), kTurnMs);
    for (size_t i = 0; i < probes.size(); ++i) {
      if (waiting[i].revents != 0) probes[i]->Advance();
    }
  }
}

}  // namespace

StatusOr<std::vector<Obstacle>> ProbeHosts(
    const ProbeOptions& options, const std::vector<NetworkHost>& hosts,
    const std::vector<int>& targets, Deadline deadline) {
  const auto own = InterfaceAddresses({});
  RING_KERAS_RETURN_IF_ERROR(own.status());
  std::map<std::string, int> own_speeds;
  for (const InterfaceAddress& entry : own.value()) {
    own_speeds[entry.address] = entry.speed_mbps;
  }
  std::vector<Obstacle> obstacles;
  Probes probes;
  for (int host : targets) {
    const auto& candidates = hosts[host].candidates;
    for (size_t i = 0; i < candidates.size(); ++i) {
      // It would be this host that answers.
      if (own_speeds.count(candidates[i].address) != 0) {
        obstacles.push_back({host, i, false, 0, "this host has it too"});
        continue;
      }
      probes.push_back(std::make_unique<Probe>(options, host, i, candidates[i],
                                               hosts[host].ranks.front()));
    }
  }
  RING_KERAS_RETURN_IF_ERROR(
      AllowDescriptors(probes.size(), 2 * probes.size(),
                       StrCat("rank ", options.self.rank,
                              ", which tries the other hosts' addresses,")));
  RING_KERAS_RETURN_IF_ERROR(Run(probes, options, deadline));
  for (const auto& probe : probes) {
    if (!probe->reached()) {
      obstacles.push_back(
          {probe->host, probe->candidate, false, 0, probe->failure()});
      continue;
    }
    const int own_mbps = own_speeds[probe->local_address()];
    if (own_mbps < hosts[probe->host].candidates[probe->candidate].speed_mbps) {
      obstacles.push_back({probe->host, probe->candidate, true, own_mbps, ""});
    }
  }
  return obstacles;
}

}  // namespace ring_keras
