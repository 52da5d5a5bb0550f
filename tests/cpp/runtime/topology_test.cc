// Ranks, hosts, and who counts as local.
#include "tf_ops/runtime/topology.h"

#include <unistd.h>

#include <string>
#include <vector>

#include "tests/cpp/support/test.h"
#include "tf_ops/runtime/peer_card.h"

namespace ring_keras {
namespace {

std::vector<PeerCard> CardsOn(const std::vector<std::string>& hosts) {
  std::vector<PeerCard> cards;
  for (const std::string& host : hosts) {
    PeerCard card;
    card.host_name = host;
    card.boot_id = "boot-" + host;
    card.host_id = "name:" + host;
    cards.push_back(card);
  }
  return cards;
}

// {local_rank, local_size, cross_rank, cross_size}
std::vector<int> PlaceOf(int rank, const std::vector<PeerCard>& cards) {
  const Topology topology = MakeTopology(rank, cards);
  EXPECT_EQ(topology.rank, rank);
  EXPECT_EQ(topology.size, cards.size());
  return {topology.local_rank, topology.local_size, topology.cross_rank,
          topology.cross_size};
}

using Place = std::vector<int>;

RING_TEST(OneRankIsAlone) {
  EXPECT_EQ(PlaceOf(0, CardsOn({"a"})), Place({0, 1, 0, 1}));
}

RING_TEST(RanksOfOneHostAreCountedInOrder) {
  const auto cards = CardsOn({"a", "a", "a"});
  EXPECT_EQ(PlaceOf(0, cards), Place({0, 3, 0, 1}));
  EXPECT_EQ(PlaceOf(2, cards), Place({2, 3, 0, 1}));
}

RING_TEST(HostsMayBeInterleavedAndUneven) {
  const auto cards = CardsOn({"a", "b", "a", "b", "a"});
  EXPECT_EQ(PlaceOf(0, cards), Place({0, 3, 0, 2}));
  EXPECT_EQ(PlaceOf(1, cards), Place({0, 2, 1, 2}));
  EXPECT_EQ(PlaceOf(2, cards), Place({1, 3, 0, 2}));
  EXPECT_EQ(PlaceOf(3, cards), Place({1, 2, 1, 2}));
  // No other host has a third rank.
  EXPECT_EQ(PlaceOf(4, cards), Place({2, 3, 0, 1}));
}

// Two machines that were given one name, and one that was restarted.
RING_TEST(OneNameOnTwoMachinesIsTwoHosts) {
  auto cards = CardsOn({"a", "a"});
  cards[1].boot_id = "another";
  EXPECT_EQ(PlaceOf(1, cards), Place({0, 1, 1, 2}));
}

RING_TEST(ContainersOfOneMachineAreTwoHostsUnderWhateverName) {
  PeerCard card = MakePeerCard("");
  PeerCard other = card;
  other.host_id = "uts:[another]";
  EXPECT_EQ(PlaceOf(1, {card, other}), Place({0, 1, 1, 2}));
  // A name that changes while a job starts does not.
  other = card;
  other.host_name = "renamed";
  EXPECT_EQ(PlaceOf(1, {card, other}), Place({1, 2, 0, 1}));
}

RING_TEST(NamesThatAreGivenMakeHosts) {
  const PeerCard left = MakePeerCard("left");
  EXPECT_TRUE(left.SameHost(MakePeerCard("left")));
  EXPECT_FALSE(left.SameHost(MakePeerCard("right")));
}

RING_TEST(MemoryIsSharedOnlyWithinAPidNamespaceOfOneHost) {
  PeerCard card = MakePeerCard("");
  EXPECT_EQ(card.pid, getpid());
  EXPECT_FALSE(card.host_name.empty());
  EXPECT_FALSE(card.MayShareMemory(card));
  card.segment_descriptor = 3;
  EXPECT_TRUE(card.MayShareMemory(card));
  PeerCard other = card;
  other.pid_namespace = "pid:[another]";
  EXPECT_TRUE(card.SameHost(other));
  EXPECT_FALSE(card.MayShareMemory(other));
  other = card;
  other.segment_descriptor = -1;
  EXPECT_FALSE(card.MayShareMemory(other));
  other = card;
  other.host_id = "uts:[another]";
  EXPECT_FALSE(card.MayShareMemory(other));
  // Namespaces have the same numbers on every machine.
  card.boot_id = "";
  EXPECT_FALSE(card.MayShareMemory(card));
}

RING_TEST(ACardSurvivesTheStore) {
  PeerCard card = MakePeerCard("a host with spaces");
  card.segment_descriptor = 12;
  card.doorbell_descriptor = 14;
  for (size_t i = 0; i < card.nonce.size(); ++i) card.nonce[i] = 250 + i;
  const auto got = DecodePeerCard(Encode(card));
  ASSERT_OK(got);
  EXPECT_EQ(got.value().host_name, card.host_name);
  EXPECT_EQ(got.value().pid, card.pid);
  EXPECT_EQ(got.value().segment_descriptor, 12);
  EXPECT_EQ(got.value().doorbell_descriptor, 14);
  EXPECT_TRUE(got.value().nonce == card.nonce);
  EXPECT_TRUE(got.value().MayShareMemory(card));
  const std::string text = Encode(card);
  for (size_t cut : {size_t{0}, size_t{5}, text.size() / 2}) {
    EXPECT_FALSE(DecodePeerCard(text.substr(0, cut)).ok()) << cut;
  }
}

}  // namespace
}  // namespace ring_keras
