// A TLS session between strings, for who does input and output by himself.
#ifndef RING_KERAS_TLS_TLS_BUFFER_H_
#define RING_KERAS_TLS_TLS_BUFFER_H_

#include <memory>
#include <string>

#include "tf_ops/common/export.h"
#include "tf_ops/common/status.h"
#include "tf_ops/tls/tls_session.h"

namespace ring_keras::tls {

class RING_KERAS_EXPORT Buffer {
 public:
  // `key` as in SessionOptions.
  static StatusOr<std::unique_ptr<Buffer>> Create(Role role, std::string key);
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  // What is to be sent; it goes out once both ends have agreed.
  void Push(const std::string& plain) { unsent_ += plain; }

  // Takes what came over the network, and returns what of it is for the caller.
  // Error: see Session::end(). Then there may still be bytes to go out.
  StatusOr<std::string> Take(const std::string& came);

  // What is to go over the network now.
  std::string Outgoing();

 private:
  Buffer() = default;

  std::unique_ptr<Session> session_;
  std::string unsent_;
  std::string came_;
  std::string outgoing_;
};

}  // namespace ring_keras::tls

#endif  // RING_KERAS_TLS_TLS_BUFFER_H_
