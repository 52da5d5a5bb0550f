#include "tf_ops/runtime/shared_memory.h"

#include <algorithm>
#include <map>
#include <sstream>
#include <string_view>
#include <tuple>

namespace ring_keras {

std::string EncodeRanks(const std::vector<int>& ranks) {
  std::string text;
  for (int rank : ranks) text += StrCat(rank, " ");
  return text;
}

SharedMemory::SharedMemory(const std::vector<PeerCard>& cards,
                           const std::vector<std::string>& unattached) {
  const int size = static_cast<int>(cards.size());
  // By what PeerCard::MayShareMemory() compares; looking at every two ranks
  // takes seconds where there are thousands.
  using View = std::string_view;
  std::map<std::tuple<View, View, View>, int> firsts;
  for (int rank = 0; rank < size; ++rank) {
    const PeerCard& card = cards[rank];
    first_.push_back(rank);
    if (!card.MayShareMemory(card)) continue;
    first_[rank] =
        firsts
            .emplace(std::tie(card.boot_id, card.host_id, card.pid_namespace),
                     rank)
            .first->second;
  }
  for (int rank = 0; rank < size; ++rank) {
    if (unattached[rank].empty()) continue;
    std::istringstream text(unattached[rank]);
    for (int other = 0; text >> other;) {
      failed_.emplace(std::min(rank, other), std::max(rank, other));
    }
  }
}

bool SharedMemory::Between(int a, int b) const {
  return first_[a] == first_[b] &&
         failed_.count({std::min(a, b), std::max(a, b)}) == 0;
}

bool SharedMemory::IsComplete() const {
  return failed_.empty() &&
         std::all_of(first_.begin(), first_.end(),
                     [&](int first) { return first == first_.front(); });
}

std::vector<int> SharedMemory::NumberHosts() const {
  std::map<int, std::vector<int>> incomplete;  // Ranks of a host, by the first.
  for (const auto& [a, b] : failed_) incomplete[first_[a]];
  for (size_t rank = 0; rank < first_.size(); ++rank) {
    const auto found = incomplete.find(first_[rank]);
    if (found != incomplete.end())
      found->second.push_back(static_cast<int>(rank));
  }
  std::vector<int> hosts = first_;
  for (const auto& [first, ranks] : incomplete) {
    for (int rank : ranks) hosts[rank] = FirstOfGroup(rank, ranks);
  }
  return hosts;
}

int SharedMemory::FirstOfGroup(int rank, const std::vector<int>& ranks) const {
  std::vector<int> group;
  for (int other : ranks) {
    if (Between(rank, other)) group.push_back(other);
  }
  for (int a : group) {
    for (int b : ranks) {
      if (Between(a, b) != Between(rank, b)) return rank;
    }
  }
  return group.front();
}

}  // namespace ring_keras
