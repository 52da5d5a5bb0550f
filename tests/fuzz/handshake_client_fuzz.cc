// The client's end of a handshake: with a server that sends anything, and with
// one that holds the token, when somebody changes what it says.
#include "tests/fuzz/support/fuzz.h"
#include "tests/fuzz/support/script.h"
#include "tests/fuzz/support/tampering.h"
#include "tf_ops/rendezvous/handshake_protocol.h"

namespace ring_keras {
namespace {

const std::string kToken(32, 'T');
constexpr HandshakeParty kServer = {1, 3, 0, false};
constexpr HandshakeParty kClient = {0, 3, 7, false};

ClientHandshake MakeClient() {
  return ClientHandshake(Purpose::kRankToRank, kClient, kServer.rank, kToken);
}

// Ok while the client has nothing against the bytes.
Status Tell(ClientHandshake& client, std::string_view bytes,
            size_t piece_nbytes, std::string* said) {
  while (!bytes.empty() && !client.proven()) {
    const size_t wanted = client.bytes_wanted();
    FUZZ_CHECK(wanted > 0 && wanted <= 128);
    const std::string_view piece =
        bytes.substr(0, std::min(wanted, piece_nbytes));
    RING_KERAS_RETURN_IF_ERROR(client.Receive(piece, said));
    bytes.remove_prefix(piece.size());
  }
  return Status::Ok();
}

void FaceAnything(const std::string& bytes, size_t piece_nbytes) {
  ClientHandshake client = MakeClient();
  FUZZ_CHECK(client.Start().ok());
  std::string said;
  const Status status = Tell(client, bytes, piece_nbytes, &said);
  FUZZ_CHECK(!client.proven());
  // One proof at the most, and reasons that fit on a screen.
  FUZZ_CHECK(said.size() <= 64);
  FUZZ_CHECK(status.message().size() < 500);
}

void FaceTampering(Tampering tampering, size_t piece_nbytes) {
  ServerHandshake server(Purpose::kRankToRank, kServer, kToken);
  ClientHandshake client = MakeClient();
  std::string said;
  std::string challenge;
  FUZZ_CHECK(server.Receive(client.Start().value(), &challenge).ok());
  Status status = Tell(client, tampering.Pass(challenge), piece_nbytes, &said);
  std::string refusal;
  if (status.ok() && !said.empty() && server.Receive(said, &refusal).ok()) {
    status = Tell(client, tampering.Pass(server.Accept()), piece_nbytes, &said);
  }
  FUZZ_CHECK(client.proven() == !tampering.changes());
  FUZZ_CHECK(!client.proven() || client.server().rank == kServer.rank);
}

}  // namespace

// The first byte is the size of the pieces, the next which of the two it is.
std::vector<std::string> Seeds() {
  ServerHandshake server(Purpose::kRankToRank, kServer, kToken);
  std::string challenge;
  FUZZ_CHECK(server.Receive(MakeClient().Start().value(), &challenge).ok());
  using namespace std::string_literals;  // NOLINT
  return {"\xff\0"s + challenge,
          "\1\0"s + challenge + challenge,
          "\xff\0"s + server.Refuse(Refusal::kRankTaken),
          "\x03\0"s + server.RefuseWhileRemains(5),
          "\xff\1\0"s,
          "\x10\1\1\x09\1"s,
          "\xff\1\2\x40\1\x08\x80"s};
}

void FuzzOne(const std::string& input) {
  Script script(input);
  const size_t piece_nbytes = script.Byte() + 1;
  if (script.Below(2) == 0) {
    FaceAnything(script.Rest(), piece_nbytes);
  } else {
    FaceTampering(Tampering(&script), piece_nbytes);
  }
}

}  // namespace ring_keras
