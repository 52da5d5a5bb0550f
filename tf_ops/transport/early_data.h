// Data that came before this rank was ready for them, in memory of their own,
// so that no message ever blocks another.
#ifndef RING_KERAS_TRANSPORT_EARLY_DATA_H_
#define RING_KERAS_TRANSPORT_EARLY_DATA_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "tf_ops/transport/message_id.h"

namespace ring_keras {

class EarlyData {
 public:
  struct Piece {
    uint64_t offset;  // In the message.
    std::string bytes;
  };

  void Add(const MessageId& id, uint64_t offset, std::string bytes);
  // All pieces of a message, in the order in which they came.
  std::vector<Piece> Take(const MessageId& id);
  // Forgets the messages of `key`.
  void Cancel(uint64_t key);

  // Held now.
  size_t nbytes() const { return nbytes_; }

 private:
  std::unordered_map<MessageId, std::vector<Piece>, MessageIdHash> messages_;
  size_t nbytes_ = 0;
};

}  // namespace ring_keras

#endif  // RING_KERAS_TRANSPORT_EARLY_DATA_H_
