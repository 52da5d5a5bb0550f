// Why a communicator broke.
#include "tests/fuzz/support/fuzz.h"
#include "tf_ops/transport/status_wire.h"

namespace ring_keras {

std::vector<std::string> Seeds() {
  return {Encode(Status(StatusCode::kPeerLost, "rank 3 died")), ""};
}

void FuzzOne(const std::string& input) {
  const Status status = DecodeStatus(input);
  FUZZ_CHECK(!status.ok());
  const Status again = DecodeStatus(Encode(status));
  FUZZ_CHECK(again.code() == status.code());
  FUZZ_CHECK(again.message() == status.message());
}

}  // namespace ring_keras
