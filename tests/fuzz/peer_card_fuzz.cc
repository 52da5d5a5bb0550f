// The cards that ranks give each other through the store.
#include "tests/fuzz/support/fuzz.h"
#include "tf_ops/runtime/peer_card.h"

namespace ring_keras {

std::vector<std::string> Seeds() {
  PeerCard card;
  card.host_name = "a host";
  card.boot_id = "b2b7e3f0-9d6c-4f6e-8f4b-0e9d1a2c3b4d";
  card.host_id = "uts:[4026531838]";
  card.pid_namespace = "pid:[4026531836]";
  card.network_namespace = "net:[4026531840]";
  card.pid = 4711;
  card.segment_descriptor = 5;
  card.doorbell_descriptor = 6;
  card.nonce = {0, 1, 0x7f, 0x80, 0xff};
  card.autotune = true;
  card.tuning.direct_max_bytes = 0;
  card.tuning.parts_max_bytes = size_t{3} << 40;
  return {Encode(PeerCard()), Encode(card)};
}

void FuzzOne(const std::string& input) {
  CheckCanonical(input, DecodePeerCard,
                 [](const PeerCard& card) { return Encode(card); });
  const auto decoded = DecodePeerCard(input);
  if (!decoded.ok()) return;
  const PeerCard& card = decoded.value();
  FUZZ_CHECK(card.SameHost(card));
  FUZZ_CHECK(CheckSameSettings({card, card}).ok());
}

}  // namespace ring_keras
