#include "tf_ops/rendezvous/connection_key.h"

#include <algorithm>

#include "tf_ops/rendezvous/sha256.h"
#include "tf_ops/rendezvous/wire.h"

namespace ring_keras {

using rendezvous::AppendInteger;

std::string ConnectionKey(const std::string& token, Purpose purpose,
                          int one_rank, int other_rank, uint64_t generation,
                          uint32_t stream) {
  std::string context = "ring_keras connection key 1";
  context.push_back('\0');
  AppendInteger(context, static_cast<uint8_t>(purpose));
  AppendInteger(context, int32_t{std::min(one_rank, other_rank)});
  AppendInteger(context, int32_t{std::max(one_rank, other_rank)});
  AppendInteger(context, generation);
  AppendInteger(context, stream);
  return HmacSha256(token, context);
}

}  // namespace ring_keras
