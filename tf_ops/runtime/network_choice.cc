#include "tf_ops/runtime/network_choice.h"

#include <algorithm>
#include <map>
#include <set>
#include <sstream>
#include <tuple>
#include <utility>

#include "tf_ops/runtime/link_addresses.h"

namespace ring_keras {
namespace {

// Up to so many hosts each tries all.
constexpr int kTryAllHosts = 64;

constexpr char kNetworkAdvice[] =
    " Is there a firewall between them, or no common network? "
    "RING_KERAS_INTERFACES, or ringrun --network-interface, names the "
    "interfaces to take.";

Status Unreadable() {
  return Status(StatusCode::kInternal, ErrorCode::kOtherVersion,
                "another host's network addresses in the store cannot be read. "
                "Is the same ring_keras installed on every host?");
}

std::string Named(const Candidate& candidate) {
  return StrCat(candidate.address, " on ", candidate.interface);
}

std::string Join(const std::vector<std::string>& parts) {
  std::string text;
  for (const std::string& part : parts) {
    text += (text.empty() ? "" : ", ") + part;
  }
  return text;
}

std::string Addresses(const NetworkHost& host) {
  std::vector<std::string> parts;
  for (const Candidate& candidate : host.candidates) {
    parts.push_back(Named(candidate));
  }
  return parts.empty() ? "no address of its own" : Join(parts);
}

// Of each host's candidates, by host: the speed of the slowest way from those
// that tried it, 0 if unknown; -1: not all have reached it.
std::vector<std::vector<int>> SpeedsOf(const std::vector<NetworkHost>& hosts) {
  std::vector<std::vector<int>> speeds;
  for (const NetworkHost& host : hosts) {
    speeds.emplace_back();
    for (const Candidate& candidate : host.candidates) {
      speeds.back().push_back(candidate.speed_mbps);
    }
  }
  for (const NetworkHost& host : hosts) {
    for (const Obstacle& obstacle : host.obstacles) {
      int& speed_mbps = speeds[obstacle.host][obstacle.candidate];
      speed_mbps =
          std::min(speed_mbps, obstacle.reached ? obstacle.speed_mbps : -1);
    }
  }
  return speeds;
}

bool IsTried(const std::vector<NetworkHost>& hosts, int host) {
  const int count = static_cast<int>(hosts.size());
  for (int other = 0; other < count; ++other) {
    for (int tried : HostsToTry(hosts, other)) {
      if (tried == host) return true;
    }
  }
  return false;
}

// Which candidates of `host` are not reached from `from`, and why: "10.0.0.1 on
// eth0 (no answer)".
std::vector<std::string> Unreached(const NetworkHost& from,
                                   const std::vector<NetworkHost>& hosts,
                                   int host) {
  std::vector<std::string> result;
  for (const Obstacle& obstacle : from.obstacles) {
    if (obstacle.host != host || obstacle.reached) continue;
    const Candidate& candidate = hosts[host].candidates[obstacle.candidate];
    result.push_back(StrCat(Named(candidate), " (", obstacle.failure, ")"));
  }
  return result;
}

Status NoCommonNetwork(const std::vector<NetworkHost>& hosts, int host) {
  const NetworkHost& unreached = hosts[host];
  if (unreached.candidates.empty()) {
    return Status(
        StatusCode::kInternal, ErrorCode::kNoCommonNetwork,
        StrCat(
            "host ", unreached.name,
            " has no address that other hosts could reach: only loopback, "
            "bridges to its own containers or virtual machines, or "
            "interfaces that are down. RING_KERAS_BIND_ADDRESS forces one."));
  }
  std::vector<std::string> by_some;
  for (const NetworkHost& other : hosts) {
    const auto failures = Unreached(other, hosts, host);
    if (failures.empty()) continue;
    const std::string who =
        StrCat("host ", other.name, " (", Addresses(other), ") did not reach ");
    if (failures.size() == unreached.candidates.size()) {
      return Status(StatusCode::kInternal, ErrorCode::kNoCommonNetwork,
                    StrCat(who, "any address of host ", unreached.name, ": ",
                           Join(failures), ".", kNetworkAdvice));
    }
    by_some.push_back(who + Join(failures));
  }
  return Status(StatusCode::kInternal, ErrorCode::kNoCommonNetwork,
                StrCat("no address of host ", unreached.name,
                       " is reached by all other hosts: ", Join(by_some), ".",
                       kNetworkAdvice));
}

}  // namespace

std::vector<NetworkHost> NetworkHostsOf(const std::vector<PeerCard>& cards) {
  std::vector<NetworkHost> hosts;
  std::map<std::pair<std::string, std::string>, size_t> numbers;
  const int size = static_cast<int>(cards.size());
  for (int rank = 0; rank < size; ++rank) {
    const PeerCard& card = cards[rank];
    // What the kernel does not tell counts as one more host.
    const bool known = !card.boot_id.empty() && !card.network_namespace.empty();
    const auto [found, added] = numbers.try_emplace(
        known ? std::make_pair(card.boot_id, card.network_namespace)
              : std::make_pair(card.host_name, card.host_id),
        hosts.size());
    if (added) hosts.push_back({card.host_name, {}, false, {}, {}});
    hosts[found->second].ranks.push_back(rank);
  }
  return hosts;
}

std::vector<int> HostsToTry(const std::vector<NetworkHost>& hosts, int host) {
  const int count = static_cast<int>(hosts.size());
  std::vector<int> result;
  for (int other = 0; other < count; ++other) {
    // Of two ranks the higher one connects.
    if (other == host ||
        hosts[host].ranks.back() < hosts[other].ranks.front()) {
      continue;
    }
    const int distance = (host - other + count) % count;
    const bool is_power = (distance & (distance - 1)) == 0;
    if (count <= kTryAllHosts || is_power) result.push_back(other);
  }
  return result;
}

StatusOr<std::vector<std::vector<size_t>>> ChooseCandidates(
    const std::vector<NetworkHost>& hosts) {
  const std::vector<std::vector<int>> speeds = SpeedsOf(hosts);
  std::vector<std::vector<size_t>> chosen;
  for (size_t host = 0; host < hosts.size(); ++host) {
    const auto& candidates = hosts[host].candidates;
    // What sorts first is better.
    std::vector<std::tuple<bool, int, bool, size_t>> usable;
    for (size_t i = 0; i < candidates.size(); ++i) {
      const int speed_mbps = speeds[host][i];
      if (speed_mbps < 0) continue;
      const bool towards_store = candidates[i].towards_store;
      // Unknown is not slow: a tunnel, such as a VPN that its user has chosen,
      // or a virtual machine's.
      const bool stays = towards_store && speed_mbps == 0;
      usable.emplace_back(!stays, -speed_mbps, !towards_store, i);
    }
    if (usable.empty() && IsTried(hosts, static_cast<int>(host))) {
      return NoCommonNetwork(hosts, static_cast<int>(host));
    }
    std::sort(usable.begin(), usable.end());
    std::vector<size_t> own;
    std::set<std::string> interfaces;
    for (const auto& [leaves, slowness, far, i] : usable) {
      if (!own.empty() && !hosts[host].takes_all) break;
      if (interfaces.insert(candidates[i].interface).second) own.push_back(i);
    }
    chosen.push_back(std::move(own));
  }
  return chosen;
}

std::string MissedCandidate(const std::vector<NetworkHost>& hosts, int host,
                            const std::vector<size_t>& chosen) {
  const auto& candidates = hosts[host].candidates;
  int fastest_mbps = 0;
  std::set<std::string> interfaces;
  for (size_t i : chosen) {
    fastest_mbps = std::max(fastest_mbps, candidates[i].speed_mbps);
    interfaces.insert(candidates[i].interface);
  }
  for (const NetworkHost& other : hosts) {
    for (const Obstacle& obstacle : other.obstacles) {
      if (obstacle.host != host || obstacle.reached) continue;
      const Candidate& candidate = candidates[obstacle.candidate];
      const bool wanted = hosts[host].takes_all
                              ? interfaces.count(candidate.interface) == 0
                              : candidate.speed_mbps > fastest_mbps;
      if (!wanted) continue;
      return StrCat(Named(candidate), " is not reached by host ", other.name,
                    " (", Addresses(other), "): ", obstacle.failure);
    }
  }
  return "";
}

// A line each, of words but for the last, which may have spaces.
std::string EncodeCandidates(const NetworkHost& host) {
  std::ostringstream out;
  out << host.takes_all << '\n';
  for (const Candidate& candidate : host.candidates) {
    out << candidate.interface << ' ' << candidate.address << ' '
        << candidate.port << ' ' << candidate.speed_mbps << ' '
        << candidate.towards_store << '\n';
  }
  return out.str();
}

Status DecodeCandidates(const std::string& text, NetworkHost* host) {
  std::istringstream in(text);
  if (!(in >> host->takes_all)) return Unreadable();
  Candidate candidate;
  while (in >> candidate.interface) {
    if (!(in >> candidate.address >> candidate.port >> candidate.speed_mbps >>
          candidate.towards_store) ||
        !IsPort(candidate.port)) {
      return Unreadable();
    }
    host->candidates.push_back(candidate);
  }
  return Status::Ok();
}

std::string EncodeObstacles(const std::vector<Obstacle>& obstacles) {
  std::ostringstream out;
  for (const Obstacle& obstacle : obstacles) {
    out << obstacle.host << ' ' << obstacle.candidate << ' ' << obstacle.reached
        << ' ' << obstacle.speed_mbps << ' ' << obstacle.failure << '\n';
  }
  return out.str();
}

Status DecodeObstacles(const std::string& text,
                       const std::vector<NetworkHost>& hosts,
                       NetworkHost* host) {
  std::istringstream in(text);
  Obstacle obstacle;
  while (in >> obstacle.host) {
    if (!(in >> obstacle.candidate >> obstacle.reached >>
          obstacle.speed_mbps)) {
      return Unreadable();
    }
    in.ignore(1);
    std::getline(in, obstacle.failure);
    if (obstacle.host < 0 || obstacle.host >= static_cast<int>(hosts.size()) ||
        obstacle.candidate >= hosts[obstacle.host].candidates.size()) {
      return Unreadable();
    }
    host->obstacles.push_back(obstacle);
  }
  return Status::Ok();
}

}  // namespace ring_keras
