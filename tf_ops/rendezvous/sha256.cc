#include "tf_ops/rendezvous/sha256.h"

#include <sys/random.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>

namespace ring_keras {
namespace {

constexpr size_t kBlockBytes = 64;

// The first 32 bits of the fractional parts of the cube roots of the first 64
// primes.
constexpr uint32_t kRoundConstants[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1,
    0x923f82a4, 0xab1c5ed5, 0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3,
    0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174, 0xe49b69c1, 0xefbe4786,
    0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147,
    0x06ca6351, 0x14292967, 0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13,
    0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85, 0xa2bfe8a1, 0xa81a664b,
    0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a,
    0x5b9cca4f, 0x682e6ff3, 0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208,
    0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

uint32_t LoadBigEndian(const uint8_t* bytes) {
  return uint32_t{bytes[0]} << 24 | uint32_t{bytes[1]} << 16 |
         uint32_t{bytes[2]} << 8 | uint32_t{bytes[3]};
}

}  // namespace

void Sha256::Compress(const uint8_t* block) {
  using std::rotr;
  uint32_t schedule[64];
  for (int i = 0; i < 16; ++i) schedule[i] = LoadBigEndian(block + 4 * i);
  for (int i = 16; i < 64; ++i) {
    const uint32_t w15 = schedule[i - 15];
    const uint32_t w2 = schedule[i - 2];
    const uint32_t s0 = rotr(w15, 7) ^ rotr(w15, 18) ^ (w15 >> 3);
    const uint32_t s1 = rotr(w2, 17) ^ rotr(w2, 19) ^ (w2 >> 10);
    schedule[i] = schedule[i - 16] + s0 + schedule[i - 7] + s1;
  }

  auto [a, b, c, d, e, f, g, h] = state_;
  for (int i = 0; i < 64; ++i) {
    const uint32_t s1 = rotr(e, 6) ^ rotr(e, 11) ^ rotr(e, 25);
    const uint32_t choice = (e & f) ^ (~e & g);
    const uint32_t t1 = h + s1 + choice + kRoundConstants[i] + schedule[i];
    const uint32_t s0 = rotr(a, 2) ^ rotr(a, 13) ^ rotr(a, 22);
    const uint32_t majority = (a & b) ^ (a & c) ^ (b & c);
    const uint32_t t2 = s0 + majority;
    h = g;
    g = f;
    f = e;
    e = d + t1;
    d = c;
    c = b;
    b = a;
    a = t1 + t2;
  }
  const uint32_t working[8] = {a, b, c, d, e, f, g, h};
  for (int i = 0; i < 8; ++i) state_[i] += working[i];
}

void Sha256::Update(std::string_view bytes) {
  total_nbytes_ += bytes.size();
  while (!bytes.empty()) {
    const size_t count = std::min(bytes.size(), kBlockBytes - block_nbytes_);
    std::memcpy(block_.data() + block_nbytes_, bytes.data(), count);
    block_nbytes_ += count;
    bytes.remove_prefix(count);
    if (block_nbytes_ == kBlockBytes) {
      Compress(block_.data());
      block_nbytes_ = 0;
    }
  }
}

std::string Sha256::Finish() {
  const uint64_t total_bits = total_nbytes_ * 8;
  // A one bit, zeros up to eight bytes before a block's end, the bit count.
  std::string padding(1, '\x80');
  const size_t used = (block_nbytes_ + 1) % kBlockBytes;
  padding.append((kBlockBytes + kBlockBytes - 8 - used) % kBlockBytes, '\0');
  for (int shift = 56; shift >= 0; shift -= 8) {
    padding.push_back(static_cast<char>(total_bits >> shift & 0xff));
  }
  Update(padding);

  std::string digest;
  for (uint32_t word : state_) {
    for (int shift = 24; shift >= 0; shift -= 8) {
      digest.push_back(static_cast<char>(word >> shift & 0xff));
    }
  }
  return digest;
}

std::string Sha256Of(std::string_view message) {
  Sha256 hash;
  hash.Update(message);
  return hash.Finish();
}

std::string HmacSha256(std::string_view key, std::string_view message) {
  std::string block =
      key.size() > kBlockBytes ? Sha256Of(key) : std::string(key);
  block.resize(kBlockBytes, '\0');
  std::string inner_pad = block;
  std::string outer_pad = block;
  for (char& byte : inner_pad) byte = static_cast<char>(byte ^ 0x36);
  for (char& byte : outer_pad) byte = static_cast<char>(byte ^ 0x5c);

  Sha256 inner;
  inner.Update(inner_pad);
  inner.Update(message);
  Sha256 outer;
  outer.Update(outer_pad);
  outer.Update(inner.Finish());
  return outer.Finish();
}

bool ConstantTimeEqual(std::string_view a, std::string_view b) {
  if (a.size() != b.size()) return false;  // Lengths are no secret.
  // Volatile, so that the compiler may not stop at the first difference.
  volatile uint8_t difference = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    difference = static_cast<uint8_t>(difference | (a[i] ^ b[i]));
  }
  return difference == 0;
}

StatusOr<std::string> RandomBytes(size_t nbytes) {
  std::string bytes(nbytes, '\0');
  size_t done = 0;
  while (done < nbytes) {
    const ssize_t got = getrandom(bytes.data() + done, nbytes - done, 0);
    if (got < 0) {
      if (errno == EINTR) continue;
      return Status(StatusCode::kInternal,
                    StrCat("getrandom failed: ", ErrnoMessage(errno)));
    }
    done += static_cast<size_t>(got);
  }
  return bytes;
}

}  // namespace ring_keras
