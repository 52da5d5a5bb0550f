#include "tf_ops/rendezvous/key_table.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "tf_ops/rendezvous/limits.h"
#include "tf_ops/rendezvous/store_protocol.h"

namespace ring_keras::rendezvous {

Status KeyTable::Set(const std::string& key, const std::string& value,
                     std::vector<Waiter>* released) {
  RING_KERAS_RETURN_IF_ERROR(CheckKey(key));
  RING_KERAS_RETURN_IF_ERROR(CheckValue(key, value));
  const auto old = values_.find(key);
  const size_t freed = old == values_.end() ? 0 : old->second.size();
  const size_t added = old == values_.end()
                           ? kStoreEntryBytes + key.size() + value.size()
                           : value.size();
  if (nbytes_ - freed + added > kMaxStoreBytes) {
    return Status(
        StatusCode::kResourceExhausted,
        StrCat("the store is full: it holds ", nbytes_, " of ", kMaxStoreBytes,
               " bytes, '", key, "' would add ", added));
  }
  nbytes_ += added;
  nbytes_ -= freed;
  values_[key] = value;

  const auto waits = std::stable_partition(
      parked_.begin(), parked_.end(),
      [&](const Waiter& waiter) { return waiter.key != key; });
  released->assign(std::make_move_iterator(waits),
                   std::make_move_iterator(parked_.end()));
  parked_.erase(waits, parked_.end());
  return Status::Ok();
}

const std::string* KeyTable::Find(const std::string& key) const {
  const auto found = values_.find(key);
  return found == values_.end() ? nullptr : &found->second;
}

Status KeyTable::Park(const Waiter& waiter) {
  RING_KERAS_RETURN_IF_ERROR(CheckKey(waiter.key));
  const auto count = std::count_if(
      parked_.begin(), parked_.end(),
      [&](const Waiter& other) { return other.rank == waiter.rank; });
  if (static_cast<size_t>(count) >= kMaxParkedGets) {
    return Status(StatusCode::kResourceExhausted,
                  StrCat("rank ", waiter.rank, " waits for ", count,
                         " keys already, no more are allowed"));
  }
  parked_.push_back(waiter);
  return Status::Ok();
}

void KeyTable::Cancel(int rank, uint64_t request_id) {
  std::erase_if(parked_, [&](const Waiter& waiter) {
    return waiter.rank == rank && waiter.request_id == request_id;
  });
}

void KeyTable::CancelAll(int rank) {
  std::erase_if(parked_,
                [&](const Waiter& waiter) { return waiter.rank == rank; });
}

std::vector<KeyTable::Waiter> KeyTable::TakeAllParked() {
  return std::exchange(parked_, {});
}

}  // namespace ring_keras::rendezvous
