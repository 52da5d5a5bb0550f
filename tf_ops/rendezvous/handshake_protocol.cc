#include "tf_ops/rendezvous/handshake_protocol.h"

#include <utility>

#include "tf_ops/rendezvous/sha256.h"
#include "tf_ops/rendezvous/wire.h"

namespace ring_keras {
namespace {

using rendezvous::AppendInteger;
using rendezvous::IntegerAt;
using rendezvous::MessageType;

// Every message: magic, version, type; then its own fixed fields.
constexpr std::string_view kMagic("RINGKS", 6);
constexpr uint8_t kVersion = 2;
constexpr size_t kHeaderBytes = 8;
constexpr size_t kNonceBytes = 32;

// hello: purpose, client rank, server rank, stream, generation, whether it
// encrypts, nonce.
constexpr size_t kHelloBytes =
    kHeaderBytes + 1 + 4 + 4 + 4 + 8 + 1 + kNonceBytes;
// challenge: server rank, generation, nonce.
constexpr size_t kChallengeBytes = kHeaderBytes + 4 + 8 + kNonceBytes;
// proof, acceptance: the HMAC.
constexpr size_t kMacMessageBytes = kHeaderBytes + kDigestBytes;
// refusal: why, the server's rank (for kRanksRemain the one that does), its
// generation.
constexpr size_t kRefusalBytes = kHeaderBytes + 1 + 4 + 8;

constexpr std::string_view kClientLabel = "ring_keras handshake 2, client";
constexpr std::string_view kServerLabel = "ring_keras handshake 2, server";

Status Unauthenticated(std::string message,
                       ErrorCode error_code = ErrorCode::kNotAdmitted) {
  return Status(StatusCode::kUnauthenticated, error_code, std::move(message));
}

size_t MessageBytes(MessageType type) {
  switch (type) {
    case MessageType::kHello:
      return kHelloBytes;
    case MessageType::kChallenge:
      return kChallengeBytes;
    case MessageType::kProof:
    case MessageType::kAcceptance:
      return kMacMessageBytes;
    case MessageType::kRefusal:
      return kRefusalBytes;
  }
  return kHeaderBytes;
}

std::string StartMessage(MessageType type) {
  std::string message(kMagic);
  AppendInteger(message, kVersion);
  AppendInteger(message, static_cast<uint8_t>(type));
  return message;
}

// The zero byte keeps a label from running into what follows it.
std::string Mac(const std::string& token, std::string_view label,
                const std::string& transcript) {
  std::string message(label);
  message.push_back('\0');
  return HmacSha256(token, message + transcript);
}

const char* NameOf(Purpose purpose) {
  return purpose == Purpose::kStore ? "the store" : "a rank";
}

std::string PartyName(int rank) {
  return rank < 0 ? "the store" : StrCat("rank ", rank);
}

std::string WrongGeneration(uint64_t expected, uint64_t came) {
  return StrCat("wrong generation: expected ", expected, ", came ", came,
                ". The processes belong to different memberships of the job");
}

// The same at both ends.
std::string WrongEncryption(int server_rank, int client_rank,
                            bool client_encrypts) {
  const int encrypting = client_encrypts ? client_rank : server_rank;
  const int other = client_encrypts ? server_rank : client_rank;
  return StrCat(PartyName(encrypting), " encrypts its connections, and ",
                PartyName(other),
                " does not. Give RING_KERAS_ENCRYPT the same value in every "
                "process of the job (`ringrun --encrypt` does, for the store "
                "too)");
}

// Bytes of an untrusted peer, so that its protocol can be guessed.
std::string Hex(std::string_view bytes) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (char c : bytes) {
    const auto byte = static_cast<uint8_t>(c);
    if (!text.empty()) text.push_back(' ');
    text.push_back(kDigits[byte >> 4]);
    text.push_back(kDigits[byte & 15]);
  }
  return text;
}

}  // namespace

namespace rendezvous {

void MessageBuffer::Expect(MessageType type, bool or_refusal) {
  expected_ = type;
  or_refusal_ = or_refusal;
  bytes_.clear();
}

MessageType MessageBuffer::type() const {
  return static_cast<MessageType>(bytes_[kHeaderBytes - 1]);
}

size_t MessageBuffer::bytes_wanted() const {
  if (bytes_.size() < kHeaderBytes) return kHeaderBytes - bytes_.size();
  return MessageBytes(type()) - bytes_.size();
}

Status MessageBuffer::Append(std::string_view bytes) {
  bytes_ += bytes;
  const std::string_view start =
      std::string_view(bytes_).substr(0, kMagic.size());
  if (start != kMagic.substr(0, start.size())) {
    return Unauthenticated(
        StrCat("not a ring_keras peer: it began with the bytes ", Hex(start)));
  }
  if (bytes_.size() > kMagic.size()) {
    const auto version = IntegerAt<uint8_t>(bytes_, kMagic.size());
    if (version != kVersion) {
      wrong_version_ = true;
      return Unauthenticated(
          StrCat("wrong handshake version: expected ", int{kVersion}, ", came ",
                 int{version}, ". Install the same ring_keras everywhere"),
          ErrorCode::kOtherVersion);
    }
  }
  if (bytes_.size() >= kHeaderBytes && type() != expected_ &&
      !(or_refusal_ && type() == MessageType::kRefusal)) {
    return Unauthenticated(
        StrCat("not a ring_keras peer: expected handshake message ",
               int{static_cast<uint8_t>(expected_)}, ", came message ",
               int{static_cast<uint8_t>(type())}));
  }
  return Status::Ok();
}

}  // namespace rendezvous

ServerHandshake::ServerHandshake(Purpose purpose, const HandshakeParty& self,
                                 std::string token)
    : purpose_(purpose), self_(self), token_(std::move(token)) {
  incoming_.Expect(MessageType::kHello, /*or_refusal=*/false);
}

size_t ServerHandshake::bytes_wanted() const {
  return proven_ ? 0 : incoming_.bytes_wanted();
}

Status ServerHandshake::Receive(std::string_view bytes, std::string* reply) {
  if (Status status = incoming_.Append(bytes); !status.ok()) {
    if (incoming_.wrong_version()) *reply += Refuse(Refusal::kWrongVersion);
    return status;
  }
  if (incoming_.bytes_wanted() > 0) return Status::Ok();
  transcript_ += incoming_.bytes();
  return incoming_.type() == MessageType::kHello ? ReceiveHello(reply)
                                                 : ReceiveProof(reply);
}

Status ServerHandshake::ReceiveHello(std::string* reply) {
  const std::string& hello = incoming_.bytes();
  const auto purpose = IntegerAt<uint8_t>(hello, kHeaderBytes);
  client_.rank = IntegerAt<int32_t>(hello, kHeaderBytes + 1);
  const int wanted_rank = IntegerAt<int32_t>(hello, kHeaderBytes + 5);
  client_.stream = IntegerAt<uint32_t>(hello, kHeaderBytes + 9);
  client_.generation = IntegerAt<uint64_t>(hello, kHeaderBytes + 13);
  client_.encrypts = IntegerAt<uint8_t>(hello, kHeaderBytes + 21) != 0;

  if (purpose != static_cast<uint8_t>(purpose_)) {
    *reply += Refuse(Refusal::kWrongPurpose);
    return Unauthenticated(StrCat("wrong purpose: this port serves ",
                                  NameOf(purpose_), ", the peer asked for ",
                                  int{purpose}));
  }
  if (client_.encrypts != self_.encrypts) {
    *reply += Refuse(Refusal::kEncryption);
    return Unauthenticated(
        WrongEncryption(self_.rank, client_.rank, client_.encrypts));
  }
  if (client_.generation != self_.generation) {
    *reply += Refuse(Refusal::kWrongGeneration);
    return Unauthenticated(
        WrongGeneration(self_.generation, client_.generation));
  }
  if (wanted_rank != self_.rank) {
    *reply += Refuse(Refusal::kWrongRank);
    return Unauthenticated(StrCat("wrong rank: the peer looks for ",
                                  PartyName(wanted_rank), ", this is ",
                                  PartyName(self_.rank)));
  }
  if (client_.rank < 0) {
    *reply += Refuse(Refusal::kRankOutOfRange);
    return Unauthenticated(
        StrCat("wrong rank: the peer calls itself rank ", client_.rank));
  }

  StatusOr<std::string> nonce = RandomBytes(kNonceBytes);
  RING_KERAS_RETURN_IF_ERROR(nonce.status());
  std::string challenge = StartMessage(MessageType::kChallenge);
  AppendInteger(challenge, int32_t{self_.rank});
  AppendInteger(challenge, self_.generation);
  challenge += nonce.value();
  transcript_ += challenge;
  *reply += challenge;
  incoming_.Expect(MessageType::kProof, /*or_refusal=*/false);
  return Status::Ok();
}

Status ServerHandshake::ReceiveProof(std::string* reply) {
  const std::string& proof = incoming_.bytes();
  // The transcript ends with the proof by now, which does not cover itself.
  const std::string expected =
      Mac(token_, kClientLabel,
          transcript_.substr(0, transcript_.size() - proof.size()));
  if (!ConstantTimeEqual(expected,
                         std::string_view(proof).substr(kHeaderBytes))) {
    *reply += Refuse(Refusal::kWrongToken);
    return Unauthenticated(StrCat(
        "wrong token: the peer, which calls itself ", PartyName(client_.rank),
        ", could not prove that it holds this job's token"));
  }
  proven_ = true;
  return Status::Ok();
}

std::string ServerHandshake::Accept() {
  return StartMessage(MessageType::kAcceptance) +
         Mac(token_, kServerLabel, transcript_);
}

std::string ServerHandshake::Refuse(Refusal refusal) const {
  return RefusalMessage(refusal, self_.rank);
}

std::string ServerHandshake::RefuseWhileRemains(int rank) const {
  return RefusalMessage(Refusal::kRanksRemain, rank);
}

std::string ServerHandshake::RefusalMessage(Refusal refusal, int rank) const {
  std::string message = StartMessage(MessageType::kRefusal);
  AppendInteger(message, static_cast<uint8_t>(refusal));
  AppendInteger(message, int32_t{rank});
  AppendInteger(message, self_.generation);
  return message;
}

ClientHandshake::ClientHandshake(Purpose purpose, const HandshakeParty& self,
                                 int expected_peer_rank, std::string token)
    : purpose_(purpose),
      self_(self),
      expected_peer_rank_(expected_peer_rank),
      token_(std::move(token)) {
  incoming_.Expect(MessageType::kChallenge, /*or_refusal=*/true);
}

StatusOr<std::string> ClientHandshake::Start() {
  StatusOr<std::string> nonce = RandomBytes(kNonceBytes);
  RING_KERAS_RETURN_IF_ERROR(nonce.status());
  std::string hello = StartMessage(MessageType::kHello);
  AppendInteger(hello, static_cast<uint8_t>(purpose_));
  AppendInteger(hello, int32_t{self_.rank});
  AppendInteger(hello, int32_t{expected_peer_rank_});
  AppendInteger(hello, self_.stream);
  AppendInteger(hello, self_.generation);
  AppendInteger(hello, uint8_t{self_.encrypts});
  hello += nonce.value();
  transcript_ = hello;
  return hello;
}

size_t ClientHandshake::bytes_wanted() const {
  return proven_ ? 0 : incoming_.bytes_wanted();
}

Status ClientHandshake::Receive(std::string_view bytes, std::string* reply) {
  RING_KERAS_RETURN_IF_ERROR(incoming_.Append(bytes));
  if (incoming_.bytes_wanted() > 0) return Status::Ok();
  switch (incoming_.type()) {
    case MessageType::kRefusal:
      return ExplainRefusal();
    case MessageType::kChallenge:
      return ReceiveChallenge(reply);
    default:
      return ReceiveAcceptance();
  }
}

Status ClientHandshake::ReceiveChallenge(std::string* reply) {
  const std::string& challenge = incoming_.bytes();
  server_.rank = IntegerAt<int32_t>(challenge, kHeaderBytes);
  server_.generation = IntegerAt<uint64_t>(challenge, kHeaderBytes + 4);
  server_.stream = self_.stream;
  server_.encrypts = self_.encrypts;  // Or it would have refused.
  if (server_.rank != expected_peer_rank_) {
    return Unauthenticated(StrCat("wrong rank: expected ",
                                  PartyName(expected_peer_rank_), ", came ",
                                  PartyName(server_.rank)));
  }
  if (server_.generation != self_.generation) {
    return Unauthenticated(
        WrongGeneration(self_.generation, server_.generation));
  }
  transcript_ += challenge;
  const std::string proof = StartMessage(MessageType::kProof) +
                            Mac(token_, kClientLabel, transcript_);
  transcript_ += proof;
  *reply += proof;
  incoming_.Expect(MessageType::kAcceptance, /*or_refusal=*/true);
  return Status::Ok();
}

Status ClientHandshake::ReceiveAcceptance() {
  if (!ConstantTimeEqual(
          Mac(token_, kServerLabel, transcript_),
          std::string_view(incoming_.bytes()).substr(kHeaderBytes))) {
    return Unauthenticated(StrCat("wrong token: ", PartyName(server_.rank),
                                  " accepted this rank, but could not prove "
                                  "that it holds the same job's token"));
  }
  proven_ = true;
  return Status::Ok();
}

Status ClientHandshake::ExplainRefusal() const {
  const std::string& message = incoming_.bytes();
  const auto refusal =
      static_cast<Refusal>(IntegerAt<uint8_t>(message, kHeaderBytes));
  const int rank = IntegerAt<int32_t>(message, kHeaderBytes + 1);
  const auto generation = IntegerAt<uint64_t>(message, kHeaderBytes + 5);
  const std::string refused =
      StrCat(PartyName(rank), " refused ", PartyName(self_.rank), ": ");
  switch (refusal) {
    case Refusal::kWrongVersion:
      return Unauthenticated(
          refused +
              "wrong handshake version. Install the same ring_keras "
              "everywhere",
          ErrorCode::kOtherVersion);
    case Refusal::kWrongPurpose:
      return Unauthenticated(StrCat(refused,
                                    "wrong purpose: its port does not "
                                    "serve ",
                                    NameOf(purpose_)));
    case Refusal::kWrongRank:
      return Unauthenticated(StrCat(refused, "wrong rank: expected ",
                                    PartyName(expected_peer_rank_),
                                    " at this address"));
    case Refusal::kWrongGeneration:
      return Unauthenticated(refused +
                             WrongGeneration(generation, self_.generation));
    case Refusal::kWrongToken:
      return Unauthenticated(
          refused +
          "wrong token. Every process must read the token file of "
          "this job's launcher");
    case Refusal::kRankOutOfRange:
      return Unauthenticated(refused +
                             "the job is smaller: this rank does not exist");
    case Refusal::kRankTaken:
      return Unauthenticated(refused +
                             "a live process holds this rank already");
    case Refusal::kRankEnded:
      return Unauthenticated(
          StrCat(refused,
                 "the process of this rank has ended, and no other "
                 "can take its place"));
    case Refusal::kRanksRemain:
      return Status(
          StatusCode::kAborted,
          StrCat(PartyName(self_.rank),
                 " has left the job and can join again "
                 "when all ranks have left it: ",
                 PartyName(rank), " has not called shutdown() since"));
    case Refusal::kEncryption:
      return Unauthenticated(refused +
                             WrongEncryption(rank, self_.rank, self_.encrypts));
    case Refusal::kNone:
      break;
  }
  return Unauthenticated(
      StrCat(refused, "reason ", int{static_cast<uint8_t>(refusal)}));
}

}  // namespace ring_keras
