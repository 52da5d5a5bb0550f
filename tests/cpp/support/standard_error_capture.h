// What a test makes the core log.
#ifndef RING_KERAS_TESTS_SUPPORT_STANDARD_ERROR_CAPTURE_H_
#define RING_KERAS_TESTS_SUPPORT_STANDARD_ERROR_CAPTURE_H_

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <string>

#include "tf_ops/common/socket.h"

namespace ring_keras::testing {

// Takes what is written to standard error while it lives.
class StandardErrorCapture {
 public:
  StandardErrorCapture()
      : original_(fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 0)),
        file_(memfd_create("stderr", MFD_CLOEXEC)) {
    dup2(file_.get(), STDERR_FILENO);
  }
  ~StandardErrorCapture() { dup2(original_.get(), STDERR_FILENO); }

  std::string Text() const {
    std::string text(size_t{64} << 10, '\0');
    const ssize_t got = pread(file_.get(), text.data(), text.size(), 0);
    text.resize(got > 0 ? static_cast<size_t>(got) : 0);
    return text;
  }

 private:
  FileDescriptor original_;
  FileDescriptor file_;
};

}  // namespace ring_keras::testing

#endif  // RING_KERAS_TESTS_SUPPORT_STANDARD_ERROR_CAPTURE_H_
