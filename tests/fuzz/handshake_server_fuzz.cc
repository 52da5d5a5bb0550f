// The server's end of a handshake: with a peer that sends anything, and with
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

// Whether the server has come to trust bytes in pieces of `piece_nbytes`.
bool Convinces(ServerHandshake& server, std::string_view bytes,
               size_t piece_nbytes, std::string* reply) {
  while (!bytes.empty() && !server.proven()) {
    const size_t wanted = server.bytes_wanted();
    FUZZ_CHECK(wanted > 0 && wanted <= 128);
    const std::string_view piece =
        bytes.substr(0, std::min(wanted, piece_nbytes));
    if (!server.Receive(piece, reply).ok()) return false;
    bytes.remove_prefix(piece.size());
  }
  return server.proven();
}

void FaceAnything(const std::string& bytes, size_t piece_nbytes) {
  ServerHandshake server(Purpose::kRankToRank, kServer, kToken);
  std::string reply;
  FUZZ_CHECK(!Convinces(server, bytes, piece_nbytes, &reply));
  FUZZ_CHECK(reply.size() <= 128);
}

void FaceTampering(Tampering tampering, size_t piece_nbytes) {
  ServerHandshake server(Purpose::kRankToRank, kServer, kToken);
  ClientHandshake client(Purpose::kRankToRank, kClient, kServer.rank, kToken);
  std::string said = client.Start().value();
  while (true) {
    std::string reply;
    const bool convinced =
        Convinces(server, tampering.Pass(said), piece_nbytes, &reply);
    if (convinced) break;
    said.clear();
    const std::string heard = reply;
    for (size_t at = 0; at < heard.size() && client.bytes_wanted() > 0;) {
      const size_t count = std::min(client.bytes_wanted(), heard.size() - at);
      if (!client.Receive(heard.substr(at, count), &said).ok()) break;
      at += count;
    }
    if (said.empty()) break;
  }
  FUZZ_CHECK(server.proven() == !tampering.changes());
  if (!server.proven()) return;
  FUZZ_CHECK(server.client().rank == kClient.rank);
  FUZZ_CHECK(server.client().stream == kClient.stream);
  FUZZ_CHECK(client.Receive(server.Accept(), &said).ok() && client.proven());
}

}  // namespace

// The first byte is the size of the pieces, the next which of the two it is.
std::vector<std::string> Seeds() {
  ClientHandshake client(Purpose::kRankToRank, kClient, kServer.rank, kToken);
  const std::string hello = client.Start().value();
  using namespace std::string_literals;  // NOLINT
  return {"\xff\0"s + hello, "\1\0"s + hello + hello, "\xff\1\0"s,
          "\x10\1\1\x09\1"s, "\xff\1\2\x50\1\x08\x80"s};
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
