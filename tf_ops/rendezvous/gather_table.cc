#include "tf_ops/rendezvous/gather_table.h"

#include <utility>

#include "tf_ops/rendezvous/limits.h"
#include "tf_ops/rendezvous/store_protocol.h"

namespace ring_keras::rendezvous {
namespace {

// A topic may have given nothing but its name, which each waiter has as well.
size_t CostOf(const std::string& topic, const std::string& value) {
  return 2 * (kStoreEntryBytes + topic.size()) + value.size();
}

}  // namespace

StatusOr<std::optional<std::vector<std::string>>> GatherTable::Give(
    const Waiter& waiter, const std::string& value,
    std::vector<Waiter>* released) {
  RING_KERAS_RETURN_IF_ERROR(CheckTopic(waiter.topic));
  RING_KERAS_RETURN_IF_ERROR(CheckValue(waiter.topic, value));
  const size_t added = CostOf(waiter.topic, value);
  if (nbytes_ + added > kMaxGatheredBytes) {
    return Status(StatusCode::kResourceExhausted,
                  StrCat("the store holds ", nbytes_, " of ", kMaxGatheredBytes,
                         " bytes that are being gathered, '", waiter.topic,
                         "' would add ", added));
  }
  Topic& topic = topics_[waiter.topic];
  if (!topic.values.emplace(waiter.rank, value).second) {
    return Status(StatusCode::kInvalidArgument,
                  StrCat("rank ", waiter.rank, " has given its value for '",
                         waiter.topic, "' already, and others have not yet"));
  }
  nbytes_ += added;
  topic.waiters.emplace(waiter.rank, waiter);
  if (topic.values.size() < size_)
    return std::optional<std::vector<std::string>>();

  std::vector<std::string> values;
  for (auto& [rank, given] : topic.values) {
    nbytes_ -= CostOf(waiter.topic, given);
    values.push_back(std::move(given));
  }
  for (auto& [rank, waits] : topic.waiters)
    released->push_back(std::move(waits));
  topics_.erase(waiter.topic);
  return std::optional(std::move(values));
}

std::vector<int> GatherTable::Cancel(int rank, uint64_t request_id) {
  for (auto& [name, topic] : topics_) {
    const auto found = topic.waiters.find(rank);
    if (found == topic.waiters.end() ||
        found->second.request_id != request_id) {
      continue;
    }
    std::vector<int> missing;
    for (int other = 0; other < static_cast<int>(size_); ++other) {
      if (topic.values.count(other) == 0) missing.push_back(other);
    }
    Forget(name, topic, rank);
    if (topic.values.empty()) topics_.erase(std::string(name));
    return missing;
  }
  return {};
}

void GatherTable::CancelAll(int rank) {
  for (auto topic = topics_.begin(); topic != topics_.end();) {
    Forget(topic->first, topic->second, rank);
    topic =
        topic->second.values.empty() ? topics_.erase(topic) : std::next(topic);
  }
}

std::vector<GatherTable::Waiter> GatherTable::TakeAllParked() {
  std::vector<Waiter> all;
  for (auto& [name, topic] : std::exchange(topics_, {})) {
    for (auto& [rank, waiter] : topic.waiters) all.push_back(std::move(waiter));
  }
  nbytes_ = 0;
  return all;
}

void GatherTable::Forget(const std::string& name, Topic& topic, int rank) {
  const auto found = topic.values.find(rank);
  if (found == topic.values.end()) return;
  nbytes_ -= CostOf(name, found->second);
  topic.values.erase(found);
  topic.waiters.erase(rank);
}

}  // namespace ring_keras::rendezvous
