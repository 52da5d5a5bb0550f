#include "tf_ops/transport/shm/doorbell.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <string>

namespace ring_keras {
namespace {

void WriteOne(int descriptor) {
  const char one = 1;
  // A full pipe is already ringing.
  [[maybe_unused]] ssize_t written = write(descriptor, &one, 1);
}

}  // namespace

StatusOr<std::unique_ptr<Doorbell>> Doorbell::Create() {
  int ends[2];
  if (pipe2(ends, O_NONBLOCK | O_CLOEXEC) != 0) {
    return Status(StatusCode::kInternal,
                  StrCat("pipe2 failed: ", ErrnoMessage(errno)));
  }
  return std::unique_ptr<Doorbell>(
      new Doorbell(FileDescriptor(ends[0]), FileDescriptor(ends[1])));
}

void Doorbell::Ring() { WriteOne(write_end_.get()); }

void Doorbell::Clear() {
  char drained[256];
  while (read(read_end_.get(), drained, sizeof(drained)) ==
         static_cast<ssize_t>(sizeof(drained))) {
  }
}

StatusOr<std::unique_ptr<RemoteDoorbell>> RemoteDoorbell::Open(
    int pid, int write_descriptor, std::atomic<uint32_t>* sleeping) {
  const std::string path = StrCat("/proc/", pid, "/fd/", write_descriptor);
  FileDescriptor opened(open(path.c_str(), O_RDWR | O_NONBLOCK | O_CLOEXEC));
  if (!opened.valid()) {
    return Status(StatusCode::kInternal,
                  StrCat("cannot open ", path, ": ", ErrnoMessage(errno)));
  }
  return std::unique_ptr<RemoteDoorbell>(
      new RemoteDoorbell(std::move(opened), sleeping));
}

void RemoteDoorbell::Ring() {
  // One ring per sleep: whoever clears the flag writes.
  if (sleeping_->exchange(0, std::memory_order_acq_rel) != 0) {
    WriteOne(both_ends_.get());
  }
}

}  // namespace ring_keras
