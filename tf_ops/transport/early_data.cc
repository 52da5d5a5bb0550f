#include "tf_ops/transport/early_data.h"

#include <utility>

namespace ring_keras {

void EarlyData::Add(const MessageId& id, uint64_t offset, std::string bytes) {
  nbytes_ += bytes.size();
  messages_[id].push_back({offset, std::move(bytes)});
}

std::vector<EarlyData::Piece> EarlyData::Take(const MessageId& id) {
  const auto found = messages_.find(id);
  if (found == messages_.end()) return {};
  std::vector<Piece> pieces = std::move(found->second);
  messages_.erase(found);
  for (const Piece& piece : pieces) nbytes_ -= piece.bytes.size();
  return pieces;
}

void EarlyData::Cancel(uint64_t key) {
  for (auto message = messages_.begin(); message != messages_.end();) {
    if (message->first.key != key) {
      ++message;
      continue;
    }
    for (const Piece& piece : message->second) nbytes_ -= piece.bytes.size();
    message = messages_.erase(message);
  }
}

}  // namespace ring_keras
