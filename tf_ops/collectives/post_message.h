// A post as it travels from one rank to another; see message_posts.h.
#ifndef RING_KERAS_COLLECTIVES_POST_MESSAGE_H_
#define RING_KERAS_COLLECTIVES_POST_MESSAGE_H_

#include <cstdint>
#include <string>
#include <string_view>

#include "tf_ops/common/status.h"

namespace ring_keras {

// What it has in the byte order of the host, as FrameHeader.
struct PostHeader {
  int32_t communicator_id = 0;
  // The place of who came last, as far as known, and how long ago.
  int32_t last_rank = 0;
  int64_t since_last_ns = 0;
  uint64_t use = 0;  // Of the channel, from 1.
  // All ranks of which the sender knows gave that signature; kCannot: they
  // differ, or one cannot take part.
  uint64_t signature = 0;
};
static_assert(sizeof(PostHeader) == 32, "no hidden padding on the wire");

struct PostMessage {
  PostHeader header;
  std::string bytes;  // As it came: the header, then the payloads.

  std::string_view payloads() const {
    return std::string_view(bytes).substr(sizeof(PostHeader));
  }
};

std::string EncodePost(const PostHeader& header, std::string_view payloads);
// InvalidArgument when `bytes` is no post.
StatusOr<PostMessage> DecodePost(std::string bytes);

}  // namespace ring_keras

#endif  // RING_KERAS_COLLECTIVES_POST_MESSAGE_H_
