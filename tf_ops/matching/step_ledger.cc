#include "tf_ops/matching/step_ledger.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace ring_keras {

std::string Encode(const GivenUp& given_up) {
  std::string bytes(sizeof(given_up.through), '\0');
  std::memcpy(bytes.data(), &given_up.through, sizeof(given_up.through));
  return bytes + given_up.why;
}

StatusOr<GivenUp> DecodeGivenUp(const std::string& bytes) {
  GivenUp given_up;
  if (bytes.size() < sizeof(given_up.through)) {
    return Status(StatusCode::kInvalidArgument,
                  StrCat("the steps that a rank gives up cannot be read from ",
                         bytes.size(), " bytes"));
  }
  std::memcpy(&given_up.through, bytes.data(), sizeof(given_up.through));
  given_up.why = bytes.substr(sizeof(given_up.through));
  return given_up;
}

StepLedger::StepLedger(int size, int own_rank)
    : ranks_(size), own_rank_(own_rank) {}

bool StepLedger::OnAnnounced(int rank, uint64_t step) {
  Rank& of = ranks_[rank];
  of.step = std::max(of.step, step);
  if (step - 1 <= of.passed) return false;
  of.passed = step - 1;
  return true;
}

void StepLedger::OnGivenUp(int rank, GivenUp given_up) {
  Rank& of = ranks_[rank];
  if (given_up.through <= of.given_up.through) return;
  of.passed = std::max(of.passed, given_up.through);
  of.given_up = std::move(given_up);
}

uint64_t StepLedger::latest() const {
  uint64_t latest = 0;
  for (const Rank& rank : ranks_) latest = std::max(latest, rank.step);
  return latest;
}

bool StepLedger::AllGaveUp(uint64_t step) const {
  return std::all_of(ranks_.begin(), ranks_.end(), [step](const Rank& rank) {
    return step <= rank.given_up.through;
  });
}

Status StepLedger::why() const {
  return Status::FromCoded(StatusCode::kRankMismatch, ranks_[0].given_up.why);
}

}  // namespace ring_keras
