// Posts for a channel.
#include "tests/fuzz/support/fuzz.h"
#include "tf_ops/collectives/post_message.h"

namespace ring_keras {

std::vector<std::string> Seeds() {
  return {EncodePost(PostHeader(), {}),
          EncodePost(PostHeader{1, 3, 5, 7, 0x1234}, "payloads")};
}

void FuzzOne(const std::string& input) {
  CheckCanonical(input, DecodePost, [](const PostMessage& value) {
    return EncodePost(value.header, value.payloads());
  });
}

}  // namespace ring_keras
