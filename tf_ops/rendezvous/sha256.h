// SHA-256 (FIPS 180-4), HMAC-SHA256 (RFC 2104), and what proofs need beside.
//
// Our own, because the CPU path depends on nothing but TensorFlow. A handshake
// hashes a few hundred bytes: this is written to be read, not to be fast.
#ifndef RING_KERAS_RENDEZVOUS_SHA256_H_
#define RING_KERAS_RENDEZVOUS_SHA256_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "tf_ops/common/status.h"

namespace ring_keras {

inline constexpr size_t kDigestBytes = 32;

// The functions return kDigestBytes raw bytes.
class Sha256 {
 public:
  void Update(std::string_view bytes);
  // The digest of everything so far. Ends the object's use.
  std::string Finish();

 private:
  void Compress(const uint8_t* block);

  std::array<uint32_t, 8> state_ = {0x6a09e667, 0xbb67ae85, 0x3c6ef372,
                                    0xa54ff53a, 0x510e527f, 0x9b05688c,
                                    0x1f83d9ab, 0x5be0cd19};
  std::array<uint8_t, 64> block_ = {};
  size_t block_nbytes_ = 0;
  uint64_t total_nbytes_ = 0;
};

std::string Sha256Of(std::string_view message);
std::string HmacSha256(std::string_view key, std::string_view message);

// Takes the same time wherever the bytes differ, so that a peer cannot guess a
// proof byte by byte.
bool ConstantTimeEqual(std::string_view a, std::string_view b);

// Unpredictable bytes from the kernel.
StatusOr<std::string> RandomBytes(size_t nbytes);

}  // namespace ring_keras

#endif  // RING_KERAS_RENDEZVOUS_SHA256_H_
