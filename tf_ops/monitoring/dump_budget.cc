#include "tf_ops/monitoring/dump_budget.h"

#include "tf_ops/common/status.h"

namespace ring_keras {

bool DumpBudget::Take(DumpCause cause, bool at_once, Time now) {
  const bool is_stall = cause == DumpCause::kStall;
  if (taken_ == kMaxDumps || (is_stall && stalls_ == kMaxStalls)) return false;
  if (!at_once && now < (is_stall ? next_stall_ : next_)) return false;
  ++taken_;
  stalls_ += is_stall ? 1 : 0;
  next_stall_ = now + kInterval;
  if (!is_stall) next_ = now + kInterval;
  return true;
}

std::string DumpBudget::Exhausted(DumpCause cause) const {
  if (taken_ == kMaxDumps) {
    return StrCat("that was the last of ", kMaxDumps,
                  " times; nothing more is written until the next init()");
  }
  if (cause == DumpCause::kStall && stalls_ == kMaxStalls) {
    return StrCat("that was the last of ", kMaxStalls,
                  " times for a stall; what is left is kept for failures and "
                  "for who asks");
  }
  return "";
}

}  // namespace ring_keras
