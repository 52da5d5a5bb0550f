// Which of its addresses each host is reached at.
#include "tf_ops/runtime/network_choice.h"

#include <string>
#include <vector>

#include "tests/cpp/support/test.h"

namespace ring_keras {
namespace {

using testing::Has;

using Hosts = std::vector<NetworkHost>;
using Choice = std::vector<std::vector<size_t>>;

// Hosts a, b, ... of one rank each, with a slow network that reaches the store
// and a fast one.
Hosts TwoNetworks(int count) {
  Hosts hosts;
  for (int i = 0; i < count; ++i) {
    NetworkHost host;
    host.name = std::string(1, static_cast<char>('a' + i));
    host.ranks = {i};
    host.candidates = {{"eth0", StrCat("10.0.0.", i), 1, 1000, true},
                       {"eth1", StrCat("10.1.0.", i), 2, 25000, false}};
    hosts.push_back(host);
  }
  return hosts;
}

Choice ChoiceOf(const Hosts& hosts) {
  const auto chosen = ChooseCandidates(hosts);
  EXPECT_OK(chosen);
  return chosen.ok() ? chosen.value() : Choice();
}

RING_TEST(TheFastestThatAllReachIsTaken) {
  EXPECT_TRUE(ChoiceOf(TwoNetworks(3)) == Choice({{1}, {1}, {1}}));
}

RING_TEST(ANetworkThatOneDoesNotReachIsNotTaken) {
  Hosts hosts = TwoNetworks(3);
  hosts[2].obstacles = {{0, 1, false, 0, "no answer"}};

  const Choice chosen = ChoiceOf(hosts);

  EXPECT_TRUE(chosen == Choice({{0}, {1}, {1}}));
  EXPECT_EQ(MissedCandidate(hosts, 0, chosen[0]),
            "10.1.0.0 on eth1 is not reached by host c "
            "(10.0.0.2 on eth0, 10.1.0.2 on eth1): no answer");
  EXPECT_EQ(MissedCandidate(hosts, 1, chosen[1]), "");
}

// It is reached over the other end's slow interface.
RING_TEST(TheSlowerEndCounts) {
  Hosts hosts = TwoNetworks(2);
  hosts[1].obstacles = {{0, 1, true, 100, ""}};

  EXPECT_TRUE(ChoiceOf(hosts)[0] == std::vector<size_t>({0}));
}

RING_TEST(OfEquallyFastOnesItIsTheStoresThenTheFirst) {
  Hosts hosts = TwoNetworks(2);
  for (NetworkHost& host : hosts) {
    for (Candidate& candidate : host.candidates) candidate.speed_mbps = 0;
    std::swap(host.candidates[0], host.candidates[1]);
  }
  EXPECT_TRUE(ChoiceOf(hosts) == Choice({{1}, {1}}));

  for (NetworkHost& host : hosts) host.candidates[1].towards_store = false;
  EXPECT_TRUE(ChoiceOf(hosts) == Choice({{0}, {0}}));
}

// A tunnel, or a virtual machine's.
RING_TEST(WhereTheStoresSpeedIsUnknownItStaysThere) {
  Hosts hosts = TwoNetworks(2);
  for (NetworkHost& host : hosts) host.candidates[0].speed_mbps = 0;
  EXPECT_TRUE(ChoiceOf(hosts) == Choice({{0}, {0}}));

  hosts[1].obstacles = {{0, 0, false, 0, "no answer"}};
  EXPECT_TRUE(ChoiceOf(hosts) == Choice({{1}, {0}}));
}

// With two addresses of one interface, as of IPv4 and IPv6, one is enough.
RING_TEST(WhoTakesAllTakesEachInterfaceOnce) {
  Hosts hosts = TwoNetworks(2);
  hosts[0].takes_all = true;
  hosts[0].candidates.push_back({"eth1", "fd07::1", 3, 25000, false});
  hosts[0].candidates.push_back({"eth2", "10.2.0.0", 4, 100000, false});
  hosts[1].obstacles = {{0, 3, false, 0, "no answer"}};

  const Choice chosen = ChoiceOf(hosts);

  EXPECT_TRUE(chosen == Choice({{1, 0}, {1}}));
  EXPECT_TRUE(Has(MissedCandidate(hosts, 0, chosen[0]), "10.2.0.0 on eth2"));
}

RING_TEST(NoCommonNetworkNamesBothHostsAndTheirAddresses) {
  Hosts hosts = TwoNetworks(2);
  hosts[1].candidates = {{"ib0", "10.9.0.1", 1, 0, true}};
  hosts[1].obstacles = {{0, 0, false, 0, "no answer"},
                        {0, 1, false, 0, "no route"}};

  const Status status = ChooseCandidates(hosts).status();

  EXPECT_TRUE(Has(status.message(),
                  "host b (10.9.0.1 on ib0) did not reach any address of host "
                  "a: 10.0.0.0 on eth0 (no answer), 10.1.0.0 on eth1 (no "
                  "route)"))
      << status.message();
  EXPECT_TRUE(Has(status.message(), "--network-interface"));
}

RING_TEST(AnAddressForEachButNoneForAllNamesWhoDidNotReachIt) {
  Hosts hosts = TwoNetworks(3);
  hosts[1].obstacles = {{0, 0, false, 0, "no answer"}};
  hosts[2].obstacles = {{0, 1, false, 0, "refused"}};

  const Status status = ChooseCandidates(hosts).status();

  EXPECT_TRUE(Has(status.message(),
                  "no address of host a is reached by all other hosts: host b "
                  "(10.0.0.1 on eth0, 10.1.0.1 on eth1) did not reach 10.0.0.0 "
                  "on eth0 (no answer), host c "))
      << status.message();
}

RING_TEST(AHostWithoutAddressesMattersOnlyIfOthersConnectToIt) {
  Hosts hosts = TwoNetworks(2);
  hosts[1].candidates.clear();  // Ranks of a higher number connect.
  EXPECT_TRUE(ChoiceOf(hosts) == Choice({{1}, {}}));

  hosts[0].candidates.clear();
  const Status status = ChooseCandidates(hosts).status();
  EXPECT_TRUE(Has(status.message(), "host a has no address"))
      << status.message();
}

RING_TEST(HostsAreWhatHasInterfacesOfItsOwn) {
  std::vector<PeerCard> cards(5);
  for (PeerCard& card : cards) {
    card.boot_id = "boot";
    card.network_namespace = "net:[1]";
  }
  cards[1].network_namespace = "net:[2]";
  cards[3].boot_id = "another boot";
  cards[4].host_name = "another name";

  const Hosts hosts = NetworkHostsOf(cards);

  ASSERT_EQ(hosts.size(), 3u);
  EXPECT_TRUE(hosts[0].ranks == std::vector<int>({0, 2, 4}));
  EXPECT_TRUE(hosts[1].ranks == std::vector<int>({1}));
  EXPECT_TRUE(hosts[2].ranks == std::vector<int>({3}));
  // Rank 4 connects to both others, rank 1 to rank 0, rank 3 to 0 and 1.
  EXPECT_TRUE(HostsToTry(hosts, 0) == std::vector<int>({1, 2}));
  EXPECT_TRUE(HostsToTry(hosts, 1) == std::vector<int>({0}));
  EXPECT_TRUE(HostsToTry(hosts, 2) == std::vector<int>({0, 1}));
}

RING_TEST(WhatAHostTriesGrowsSlowlyWithManyHosts) {
  Hosts hosts = TwoNetworks(64);
  EXPECT_EQ(HostsToTry(hosts, 63).size(), 63u);
  hosts = TwoNetworks(4096);
  EXPECT_EQ(HostsToTry(hosts, 4095).size(), 12u);
  EXPECT_TRUE(HostsToTry(hosts, 0).empty());
}

RING_TEST(WhatHostsTellEachOtherComesBackAsItWas) {
  Hosts hosts = TwoNetworks(2);
  hosts[0].takes_all = true;
  hosts[1].obstacles = {{0, 1, false, 0, "cannot connect: no route (113)"},
                        {0, 0, true, 100, ""}};
  Hosts decoded(2);

  EXPECT_OK(DecodeCandidates(EncodeCandidates(hosts[0]), &decoded[0]));
  EXPECT_OK(DecodeCandidates(EncodeCandidates(hosts[1]), &decoded[1]));
  EXPECT_OK(DecodeObstacles(EncodeObstacles(hosts[1].obstacles), decoded,
                            &decoded[1]));

  EXPECT_TRUE(decoded[0].takes_all && !decoded[1].takes_all);
  EXPECT_EQ(EncodeCandidates(decoded[0]), EncodeCandidates(hosts[0]));
  ASSERT_EQ(decoded[1].obstacles.size(), 2u);
  EXPECT_EQ(decoded[1].obstacles[0].failure, "cannot connect: no route (113)");
  EXPECT_TRUE(decoded[1].obstacles[1].reached);

  // Of another version, or of a rank that makes things up.
  for (const char* text :
       {"2 0 1 1 \n", "0 2 1 1 \n", "-1 0 1 1 \n", "0 1\n"}) {
    EXPECT_FALSE(DecodeObstacles(text, decoded, &decoded[1]).ok());
  }
  for (const char* text :
       {"1\neth0 10.0.0.1\n", "1\neth0 10.0.0.1 0 1 0\n",
        "1\neth0 10.0.0.1 -1 1 0\n", "1\neth0 10.0.0.1 65536 1 0\n"}) {
    EXPECT_FALSE(DecodeCandidates(text, &decoded[0]).ok()) << text;
  }
}

}  // namespace
}  // namespace ring_keras
