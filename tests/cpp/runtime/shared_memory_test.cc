// Which ranks share memory, and what counts as a host.
#include "tf_ops/runtime/shared_memory.h"

#include <string>
#include <vector>

#include "tests/cpp/support/test.h"

namespace ring_keras {
namespace {

using Numbers = std::vector<int>;

// Ranks of these hosts; one of host "-" offers no memory.
std::vector<PeerCard> CardsWithMemory(const std::vector<std::string>& hosts) {
  std::vector<PeerCard> cards;
  for (const std::string& host : hosts) {
    PeerCard card;
    card.boot_id = "boot";
    card.host_id = host;
    card.segment_descriptor = host == "-" ? -1 : 3;
    cards.push_back(card);
  }
  return cards;
}

SharedMemory SharedBy(const std::vector<std::string>& hosts,
                      const std::vector<Numbers>& unattached = {}) {
  std::vector<std::string> texts(hosts.size());
  for (size_t rank = 0; rank < unattached.size(); ++rank) {
    texts[rank] = EncodeRanks(unattached[rank]);
  }
  return SharedMemory(CardsWithMemory(hosts), texts);
}

RING_TEST(RanksOfAHostHaveItsNumber) {
  const SharedMemory shared = SharedBy({"a", "b", "a", "-", "b", "-"});
  EXPECT_TRUE(shared.NumberHosts() == Numbers({0, 1, 0, 3, 1, 5}));
  EXPECT_TRUE(shared.Between(0, 2));
  EXPECT_FALSE(shared.Between(0, 1));
  EXPECT_FALSE(shared.Between(3, 5));
  EXPECT_FALSE(shared.IsComplete());
  EXPECT_TRUE(SharedBy({"a", "a", "a"}).IsComplete());
}

RING_TEST(WhatFailsOneWayIsNotSharedEitherWay) {
  const SharedMemory shared = SharedBy({"a", "a", "b", "b"}, {{1}});
  EXPECT_FALSE(shared.Between(0, 1));
  EXPECT_FALSE(shared.Between(1, 0));
  EXPECT_TRUE(shared.Between(2, 3));
  EXPECT_FALSE(shared.IsComplete());
  EXPECT_TRUE(shared.NumberHosts() == Numbers({0, 1, 2, 2}));
  EXPECT_FALSE(SharedBy({"a", "a"}, {{1}}).IsComplete());
}

RING_TEST(AHostIsOneOnlyIfAllOfItShareWithAll) {
  // Rank 2 shares with both others, which do not share with each other.
  EXPECT_TRUE(SharedBy({"a", "a", "a"}, {{1}}).NumberHosts() ==
              Numbers({0, 1, 2}));
  // Rank 1 shares with none, and the others do with each other.
  EXPECT_TRUE(SharedBy({"a", "a", "a", "a"}, {{}, {0, 2, 3}}).NumberHosts() ==
              Numbers({0, 1, 0, 0}));
}

}  // namespace
}  // namespace ring_keras
