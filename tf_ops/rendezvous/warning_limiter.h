// Logs warnings about untrusted peers, but no flood of them.
#ifndef RING_KERAS_RENDEZVOUS_WARNING_LIMITER_H_
#define RING_KERAS_RENDEZVOUS_WARNING_LIMITER_H_

#include <string>
#include <utility>

#include "tf_ops/common/deadline.h"
#include "tf_ops/common/logging.h"
#include "tf_ops/common/status.h"
#include "tf_ops/rendezvous/limits.h"

namespace ring_keras::rendezvous {

// Not thread-safe.
class WarningLimiter {
 public:
  // `owner`: who drops connections, "the store".
  explicit WarningLimiter(std::string owner) : owner_(std::move(owner)) {}

  void Warn(const std::string& text) {
    CloseWindow();
    if (++count_ <= kMaxWarningsPerWindow)
      Log(LogLevel::kWarning, Prefix(ErrorCode::kConnectionDropped) + text);
  }

  // Tells what the last window kept back, once it is over.
  void CloseWindow() {
    if (!window_.Expired()) return;
    if (count_ > kMaxWarningsPerWindow) {
      Log(LogLevel::kWarning,
          StrCat(Prefix(ErrorCode::kConnectionDropped), owner_, " dropped ",
                 count_ - kMaxWarningsPerWindow,
                 " more connections like these"));
    }
    count_ = 0;
    window_ = Deadline::After(kWarningWindowS);
  }

 private:
  const std::string owner_;
  int count_ = 0;
  Deadline window_ = Deadline::After(kWarningWindowS);
};

}  // namespace ring_keras::rendezvous

#endif  // RING_KERAS_RENDEZVOUS_WARNING_LIMITER_H_
