// The word that a rank gives steps up.
#include "tests/fuzz/support/fuzz.h"
#include "tf_ops/matching/step_ledger.h"

namespace ring_keras {

std::vector<std::string> Seeds() {
  return {Encode(GivenUp()), Encode(GivenUp{7, "rank 1 skipped a step"})};
}

void FuzzOne(const std::string& input) {
  CheckCanonical(input, DecodeGivenUp,
                 [](const GivenUp& value) { return Encode(value); });
  const auto decoded = DecodeGivenUp(input);
  if (!decoded.ok()) return;
  const GivenUp& word = decoded.value();
  StepLedger ledger(/*size=*/2, /*own_rank=*/0);
  ledger.OnAnnounced(1, 5);
  ledger.OnGivenUp(1, word);
  FUZZ_CHECK(ledger.HasPassed(1, 4));
  FUZZ_CHECK(ledger.HasPassed(1, word.through));
  FUZZ_CHECK(!ledger.GaveUp(1));
}

}  // namespace ring_keras
