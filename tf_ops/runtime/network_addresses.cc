#include "tf_ops/runtime/network_addresses.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "tf_ops/common/interfaces.h"
#include "tf_ops/common/logging.h"
#include "tf_ops/common/socket.h"
#include "tf_ops/rendezvous/limits.h"
#include "tf_ops/runtime/acceptor_thread.h"
#include "tf_ops/runtime/network_choice.h"
#include "tf_ops/runtime/network_probe.h"

namespace ring_keras {
namespace {

using rendezvous::Admission;
using rendezvous::HandshakeAcceptorOptions;
using rendezvous::TrustedConnection;

constexpr char kCandidatesTopic[] = "network/candidates";
constexpr char kObstaclesTopic[] = "network/obstacles";

int HostOf(const std::vector<NetworkHost>& hosts, int rank) {
  const auto found =
      std::find_if(hosts.begin(), hosts.end(), [&](const NetworkHost& host) {
        return std::binary_search(host.ranks.begin(), host.ranks.end(), rank);
      });
  return static_cast<int>(found - hosts.begin());
}

bool IsLoopback(const std::string& address) {
  return address.rfind("127.", 0) == 0 || address == "::1";
}

// Where this host might be reached.
StatusOr<std::vector<InterfaceAddress>> OwnAddresses(
    const NetworkOptions& options) {
  if (options.bind_address.empty()) {
    auto found = InterfaceAddresses(options.interfaces);
    if (found.ok() && options.interfaces.empty() &&
        !IsLoopback(options.store_address)) {
      auto& addresses = found.value();
      const bool is_there = std::any_of(
          addresses.begin(), addresses.end(), [&](const auto& entry) {
            return entry.address == options.store_address;
          });
      // Of an interface that is no other host's way as a rule, but is here: a
      // routed address on "lo", a bridge that the network is on.
      if (!is_there) {
        addresses.push_back({"the-way-to-the-store", options.store_address});
      }
    }
    if (found.status().code() != StatusCode::kInvalidArgument) return found;
    return Status(StatusCode::kInvalidArgument, ErrorCode::kNoSuchInterface,
                  "RING_KERAS_INTERFACES: " + found.status().message());
  }
  return std::vector<InterfaceAddress>{
      {"RING_KERAS_BIND_ADDRESS", options.bind_address, 0}};
}

// Listens on each of a host's candidates, so that others can try them: only
// those that hold the token are told anything.
class Trial {
 public:
  Status Begin(const NetworkOptions& options, NetworkHost* own,
               size_t host_count) {
    const auto addresses = OwnAddresses(options);
    RING_KERAS_RETURN_IF_ERROR(addresses.status());
    own->takes_all =
        options.bind_address.empty() && options.interfaces.size() > 1;
    std::vector<FileDescriptor> listeners;
    for (const InterfaceAddress& entry : addresses.value()) {
      StatusOr<FileDescriptor> listener = Listen(entry.address, 0);
      if (!listener.ok()) {
        if (!options.bind_address.empty()) {
          return Status(listener.status().code(), ErrorCode::kNoSuchInterface,
                        StrCat("RING_KERAS_BIND_ADDRESS must be an address of "
                               "this host that the other hosts reach: ",
                               listener.status().message()));
        }
        // Such as an address that the kernel has not made sure of yet.
        Log(LogLevel::kDebug, listener.status().message());
        continue;
      }
      const int fd = listener.value().get();
      const std::string address = LocalHost(fd);
      const bool towards_store = address == options.store_address;
      // What a tunnel says of its speed is made up.
      const bool known = !(towards_store && entry.is_tunnel);
      own->candidates.push_back({entry.interface, address, LocalPort(fd),
                                 known ? entry.speed_mbps : 0, towards_store});
      listeners.push_back(std::move(listener.value()));
    }
    HandshakeAcceptorOptions acceptor_options;
    acceptor_options.owner = StrCat("rank ", options.rank);
    acceptor_options.purpose = Purpose::kRankToRank;
    acceptor_options.rank = options.rank;
    acceptor_options.generation = options.generation;
    acceptor_options.token = options.token;
    acceptor_options.handshake_timeout_s = kHandshakeTimeoutS;
    acceptor_options.max_untrusted =
        host_count + kSpareUnauthenticatedConnections;
    auto thread = AcceptorThread::Start(
        acceptor_options, std::move(listeners),
        [](const HandshakeParty&, const std::string&) { return Admission(); },
        [](const TrustedConnection&) {});
    RING_KERAS_RETURN_IF_ERROR(thread.status());
    thread_ = std::move(thread.value());
    return Status::Ok();
  }

 private:
  std::unique_ptr<AcceptorThread> thread_;
};

// Fills in every host's candidates, then what their first ranks have found out.
Status TryAll(const NetworkOptions& options, int own,
              std::vector<NetworkHost>* hosts, Store& store,
              Deadline deadline) {
  const bool is_first = hosts->at(own).ranks.front() == options.rank;
  std::string text;
  Trial trial;  // Until all have tried.
  if (is_first) {
    NetworkHost offered;
    RING_KERAS_RETURN_IF_ERROR(trial.Begin(options, &offered, hosts->size()));
    text = EncodeCandidates(offered);
  }
  const auto candidates = store.Gather(kCandidatesTopic, text, deadline);
  RING_KERAS_RETURN_IF_ERROR(candidates.status());
  for (NetworkHost& host : *hosts) {
    RING_KERAS_RETURN_IF_ERROR(
        DecodeCandidates(candidates.value()[host.ranks.front()], &host));
  }
  text.clear();
  if (is_first) {
    ProbeOptions probe_options;
    probe_options.self = {options.rank, options.generation, 0};
    probe_options.token = options.token;
    auto obstacles =
        ProbeHosts(probe_options, *hosts, HostsToTry(*hosts, own), deadline);
    RING_KERAS_RETURN_IF_ERROR(obstacles.status());
    text = EncodeObstacles(obstacles.value());
  }
  const auto obstacles = store.Gather(kObstaclesTopic, text, deadline);
  RING_KERAS_RETURN_IF_ERROR(obstacles.status());
  for (NetworkHost& host : *hosts) {
    RING_KERAS_RETURN_IF_ERROR(
        DecodeObstacles(obstacles.value()[host.ranks.front()], *hosts, &host));
  }
  return Status::Ok();
}

void LogChoice(const std::vector<NetworkHost>& hosts, int own,
               const std::vector<size_t>& chosen) {
  std::string taken;
  for (size_t i : chosen) {
    const Candidate& candidate = hosts[own].candidates[i];
    taken += StrCat(taken.empty() ? "" : " and ", candidate.address, " on ",
                    candidate.interface);
  }
  Log(LogLevel::kDebug,
      StrCat("other hosts reach host ", hosts[own].name, " at ", taken));
  const std::string missed = MissedCandidate(hosts, own, chosen);
  if (!missed.empty()) {
    Log(LogLevel::kWarning,
        StrCat(Prefix(ErrorCode::kFewerNetworks), "other hosts reach host ",
               hosts[own].name, " at ", taken, " only, since ", missed));
  }
}

}  // namespace

StatusOr<std::vector<std::string>> FindBindAddresses(
    const NetworkOptions& options, const std::vector<PeerCard>& cards,
    Store& store, Deadline deadline) {
  std::vector<NetworkHost> hosts = NetworkHostsOf(cards);
  std::vector<std::string> result = {options.bind_address};
  if (options.bind_address.empty()) result = {options.store_address};
  if (hosts.size() == 1) return result;
  const int own = HostOf(hosts, options.rank);
  RING_KERAS_RETURN_IF_ERROR(TryAll(options, own, &hosts, store, deadline));
  const auto chosen = ChooseCandidates(hosts);
  RING_KERAS_RETURN_IF_ERROR(chosen.status());
  // A rank may have been given one of its own.
  if (!options.bind_address.empty()) return result;
  const std::vector<size_t>& own_choice = chosen.value()[own];
  // No other host connects to it, only ranks of its own may.
  if (own_choice.empty()) return result;
  if (hosts[own].ranks.front() == options.rank) {
    LogChoice(hosts, own, own_choice);
  }
  result.clear();
  for (size_t i : own_choice) {
    result.push_back(hosts[own].candidates[i].address);
  }
  return result;
}

}  // namespace ring_keras
