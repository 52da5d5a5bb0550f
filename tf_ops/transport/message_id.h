// The name of a message between two ranks.
#ifndef RING_KERAS_TRANSPORT_MESSAGE_ID_H_
#define RING_KERAS_TRANSPORT_MESSAGE_ID_H_

#include <cstddef>
#include <cstdint>

namespace ring_keras {

struct MessageId {
  uint64_t key;  // The collective.
  uint32_t tag;  // The step in it.
  bool operator==(const MessageId& other) const {
    return key == other.key && tag == other.tag;
  }
};

struct MessageIdHash {
  size_t operator()(const MessageId& id) const {
    return id.key ^ (uint64_t{id.tag} * 0x9E3779B97F4A7C15u);
  }
};

}  // namespace ring_keras

#endif  // RING_KERAS_TRANSPORT_MESSAGE_ID_H_
