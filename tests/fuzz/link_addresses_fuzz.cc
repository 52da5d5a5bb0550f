// Where a rank says that it listens.
#include "tests/fuzz/support/fuzz.h"
#include "tf_ops/runtime/link_addresses.h"

namespace ring_keras {

std::vector<std::string> Seeds() {
  return {"127.0.0.1 4711\n", "10.0.0.1 1\nfe80::1%eth0 65535\n"};
}

void FuzzOne(const std::string& input) {
  const auto addresses = ParseAddresses(/*rank=*/1, input);
  if (!addresses.ok()) return;
  FUZZ_CHECK(!addresses.value().empty());
  std::string written;
  for (const SocketAddress& address : addresses.value()) {
    FUZZ_CHECK(!address.host.empty());
    FUZZ_CHECK(address.port > 0 && address.port < 65536);
    written += StrCat(address.host, " ", address.port, "\n");
  }
  const auto again = ParseAddresses(1, written);
  FUZZ_CHECK(again.ok());
  FUZZ_CHECK(again.value().size() == addresses.value().size());
}

}  // namespace ring_keras
