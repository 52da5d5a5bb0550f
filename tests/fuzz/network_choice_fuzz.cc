// By which addresses hosts are reached, worked out from what others say.
#include "tests/fuzz/support/fuzz.h"
#include "tests/fuzz/support/script.h"
#include "tf_ops/runtime/network_choice.h"

namespace ring_keras {
namespace {

NetworkHost SeedHost() {
  NetworkHost host;
  host.takes_all = true;
  host.candidates = {{"eth0", "10.0.0.1", 4711, 10000, true},
                     {"ib0", "fe80::1%ib0", 65535, 0, false}};
  return host;
}

// Two hosts of one rank each; the first may say anything.
std::vector<NetworkHost> Hosts() {
  NetworkHost first;
  first.name = "first";
  first.ranks = {0};
  NetworkHost second = SeedHost();
  second.name = "second";
  second.ranks = {1};
  return {first, second};
}

}  // namespace

// The first byte is how long the candidates are, of the first host; what it
// found out follows.
std::vector<std::string> Seeds() {
  const std::string candidates = EncodeCandidates(SeedHost());
  const std::string obstacles =
      EncodeObstacles({{1, 0, false, 0, "no answer"}, {1, 1, true, 1000, ""}});
  return {static_cast<char>(candidates.size()) + candidates + obstacles};
}

void FuzzOne(const std::string& input) {
  Script script(input);
  const std::string candidates = script.Bytes(script.Byte());
  std::vector<NetworkHost> hosts = Hosts();
  if (!DecodeCandidates(candidates, &hosts[0]).ok()) return;
  for (const Candidate& candidate : hosts[0].candidates) {
    FUZZ_CHECK(!candidate.interface.empty() && !candidate.address.empty());
    FUZZ_CHECK(candidate.port > 0 && candidate.port < 65536);
  }
  NetworkHost again;
  FUZZ_CHECK(DecodeCandidates(EncodeCandidates(hosts[0]), &again).ok());
  FUZZ_CHECK(EncodeCandidates(again) == EncodeCandidates(hosts[0]));

  if (!DecodeObstacles(script.Rest(), hosts, &hosts[0]).ok()) return;
  const std::string written = EncodeObstacles(hosts[0].obstacles);
  FUZZ_CHECK(DecodeObstacles(written, hosts, &again).ok());
  FUZZ_CHECK(EncodeObstacles(again.obstacles) == written);

  const auto chosen = ChooseCandidates(hosts);
  if (!chosen.ok()) return;
  for (size_t host = 0; host < hosts.size(); ++host) {
    for (size_t i : chosen.value()[host]) {
      FUZZ_CHECK(i < hosts[host].candidates.size());
    }
    MissedCandidate(hosts, static_cast<int>(host), chosen.value()[host]);
  }
}

}  // namespace ring_keras
