#include "tf_ops/tls/tls_buffer.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace ring_keras::tls {

StatusOr<std::unique_ptr<Buffer>> Buffer::Create(Role role, std::string key) {
  std::unique_ptr<Buffer> buffer(new Buffer);
  Buffer* const self = buffer.get();
  SessionOptions options;
  options.role = role;
  options.key = std::move(key);
  auto session = Session::Create(
      options, {[self](const void* data, size_t nbytes) {
                  self->outgoing_.append(static_cast<const char*>(data),
                                         nbytes);
                  return static_cast<ssize_t>(nbytes);
                },
                [self](void* data, size_t nbytes) {
                  const size_t count = std::min(nbytes, self->came_.size());
                  std::memcpy(data, self->came_.data(), count);
                  self->came_.erase(0, count);
                  return static_cast<ssize_t>(count);
                }});
  RING_KERAS_RETURN_IF_ERROR(session.status());
  buffer->session_ = std::move(session.value());
  return buffer;
}

StatusOr<std::string> Buffer::Take(const std::string& came) {
  came_ += came;
  session_->Advance();
  std::string plain;
  std::string record(kRecordBytes, '\0');
  while (true) {
    const iovec part = {record.data(), record.size()};
    const ssize_t count = session_->Read(&part, 1);
    if (count <= 0) break;
    plain.append(record, 0, static_cast<size_t>(count));
  }
  // What came before it went wrong is what was sent.
  if (plain.empty() && !session_->end().ok()) return session_->end();
  return plain;
}

std::string Buffer::Outgoing() {
  session_->Advance();
  while (!unsent_.empty()) {
    const iovec part = {unsent_.data(), unsent_.size()};
    const ssize_t count = session_->Write(&part, 1);
    if (count <= 0) break;
    unsent_.erase(0, static_cast<size_t>(count));
  }
  return std::exchange(outgoing_, {});
}

}  // namespace ring_keras::tls
