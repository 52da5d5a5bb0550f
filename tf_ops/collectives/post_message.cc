#include "tf_ops/collectives/post_message.h"

#include <cstring>
#include <utility>

namespace ring_keras {

std::string EncodePost(const PostHeader& header, std::string_view payloads) {
  std::string bytes;
  bytes.reserve(sizeof(header) + payloads.size());
  bytes.append(reinterpret_cast<const char*>(&header), sizeof(header));
  bytes.append(payloads);
  return bytes;
}

StatusOr<PostMessage> DecodePost(std::string bytes) {
  PostMessage post;
  if (bytes.size() < sizeof(post.header)) {
    return Status(
        StatusCode::kInvalidArgument,
        StrCat("a post cannot be read from ", bytes.size(), " bytes"));
  }
  std::memcpy(&post.header, bytes.data(), sizeof(post.header));
  post.bytes = std::move(bytes);
  return post;
}

}  // namespace ring_keras
