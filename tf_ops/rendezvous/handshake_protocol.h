// The handshake as pure state machines: bytes in, bytes out, no socket.
//
//   client                                        server
//   hello: who I am, whom I want, nonce     ->
//                                           <-    challenge: who I am, nonce
//   proof: HMAC(token, client label + both) ->
//                                           <-    acceptance: HMAC(token,
//                                                 server label + all three)
//
// The server may answer with a refusal instead. Both HMACs cover every byte
// sent before, so purpose, ranks, generation, stream and both nonces; the
// labels differ, so that neither side's message serves as the other's. The
// client proves itself first: an untrusted peer never gets a byte that depends
// on the token. What follows on the connection is in the clear, or under TLS
// (tls/tls_session.h) with the key of connection_key.h, as the hello said:
// an end that would not do the same refuses, so that nobody is talked out of
// it.
#ifndef RING_KERAS_RENDEZVOUS_HANDSHAKE_PROTOCOL_H_
#define RING_KERAS_RENDEZVOUS_HANDSHAKE_PROTOCOL_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "tf_ops/common/status.h"

namespace ring_keras {

// What the connection is for. The numbers travel: append, never renumber.
enum class Purpose : uint8_t { kStore = 1, kRankToRank = 2 };

// One end of a connection.
struct HandshakeParty {
  int rank = -1;  // -1: the store.
  uint64_t generation = 0;
  uint32_t stream = 0;
  bool encrypts = false;  // What follows the handshake.
};

// Why a server turns a client away. Travels: append, never renumber.
enum class Refusal : uint8_t {
  kNone = 0,
  kWrongVersion = 1,
  kWrongPurpose = 2,
  kWrongRank = 3,  // The client looks for somebody else.
  kWrongGeneration = 4,
  kWrongToken = 5,
  kRankOutOfRange = 6,  // The client's own rank does not exist.
  kRankTaken = 7,       // The client's rank has a live connection.
  kRankEnded = 8,       // The process of the client's rank is no more.
  // The client's rank has left the generation, and others are still in it.
  kRanksRemain = 9,
  kEncryption = 10,  // One end encrypts, the other does not.
};

namespace rendezvous {

enum class MessageType : uint8_t {
  kHello = 1,
  kChallenge = 2,
  kProof = 3,
  kAcceptance = 4,
  kRefusal = 5,
};

// Collects one message, and tells garbage by its first wrong byte.
class MessageBuffer {
 public:
  void Expect(MessageType type, bool or_refusal);
  // Bytes that the message still lacks, as far as is known.
  size_t bytes_wanted() const;
  // `bytes`: at most bytes_wanted() of them.
  Status Append(std::string_view bytes);
  bool wrong_version() const { return wrong_version_; }
  MessageType type() const;
  const std::string& bytes() const { return bytes_; }

 private:
  MessageType expected_ = MessageType::kHello;
  bool or_refusal_ = false;
  bool wrong_version_ = false;
  std::string bytes_;
};

}  // namespace rendezvous

class ServerHandshake {
 public:
  ServerHandshake(Purpose purpose, const HandshakeParty& self,
                  std::string token);

  // Bytes to receive next, at most; 0 once the client is proven.
  size_t bytes_wanted() const;

  // Takes bytes that came. What it appends to `reply` is to be sent, after an
  // error too; then the connection is to be closed.
  Status Receive(std::string_view bytes, std::string* reply);

  // The client holds the token: Accept() or Refuse() it.
  bool proven() const { return proven_; }
  const HandshakeParty& client() const { return client_; }

  // The server's last message.
  std::string Accept();
  std::string Refuse(Refusal refusal) const;
  // kRanksRemain: `rank` does.
  std::string RefuseWhileRemains(int rank) const;

 private:
  Status ReceiveHello(std::string* reply);
  Status ReceiveProof(std::string* reply);
  std::string RefusalMessage(Refusal refusal, int rank) const;

  const Purpose purpose_;
  const HandshakeParty self_;
  const std::string token_;
  rendezvous::MessageBuffer incoming_;
  std::string transcript_;
  HandshakeParty client_;
  bool proven_ = false;
};

class ClientHandshake {
 public:
  ClientHandshake(Purpose purpose, const HandshakeParty& self,
                  int expected_peer_rank, std::string token);

  // The first message.
  StatusOr<std::string> Start();

  // As in ServerHandshake; 0 once the server is proven.
  size_t bytes_wanted() const;
  Status Receive(std::string_view bytes, std::string* reply);

  bool proven() const { return proven_; }
  const HandshakeParty& server() const { return server_; }

 private:
  Status ReceiveChallenge(std::string* reply);
  Status ReceiveAcceptance();
  Status ExplainRefusal() const;

  const Purpose purpose_;
  const HandshakeParty self_;
  const int expected_peer_rank_;
  const std::string token_;
  rendezvous::MessageBuffer incoming_;
  std::string transcript_;
  HandshakeParty server_;
  bool proven_ = false;
};

}  // namespace ring_keras

#endif  // RING_KERAS_RENDEZVOUS_HANDSHAKE_PROTOCOL_H_
