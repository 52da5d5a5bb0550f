// What the store and its clients say after the handshake, in any pieces.
#include "tests/fuzz/support/fuzz.h"
#include "tests/fuzz/support/script.h"
#include "tf_ops/rendezvous/store_protocol.h"

namespace ring_keras {
namespace {

using namespace rendezvous;  // NOLINT: everything here is of it.

// All frames of `bytes`, which come in pieces of `piece_nbytes`, written anew;
// and whether it ended in an error.
std::string ReadAll(const std::string& bytes, size_t piece_nbytes,
                    bool* failed) {
  FrameReader reader;
  std::string written;
  *failed = false;
  for (size_t at = 0; at < bytes.size() && !*failed; at += piece_nbytes) {
    reader.Append(std::string_view(bytes).substr(at, piece_nbytes));
    while (true) {
      rendezvous::Frame frame;
      const auto found = reader.Next(&frame);
      *failed = !found.ok();
      if (*failed || !found.value()) break;
      written += rendezvous::Encode(frame);
      EventOf(frame);
      FUZZ_CHECK(ErrorOf(frame).message().size() <= frame.payload.size() + 20);
      FUZZ_CHECK(MissingRanksOf(frame).size() <= frame.payload.size() / 4);
    }
  }
  return written;
}

}  // namespace

// The first byte is the size of the pieces.
std::vector<std::string> Seeds() {
  const std::string answers =
      EncodeAnswerHeader(1, 5) + "value" + EncodeIncomplete(2, {0, 3}) +
      EncodeError(3, Status(StatusCode::kPeerLost, "gone")) +
      EncodeEvent({RankEvent::Kind::kLost, 4, "killed"});
  std::string requests;
  for (const FrameType type :
       {FrameType::kHello, FrameType::kCancel, FrameType::kPing,
        FrameType::kLeave, FrameType::kGather}) {
    requests += rendezvous::Encode({type, 7, -1, "topic", "value"});
  }
  return {"\xff" + answers, "\x05" + requests};
}

void FuzzOne(const std::string& input) {
  Script script(input);
  const size_t piece_nbytes = script.Byte() + 1;
  const std::string bytes = script.Rest();
  bool failed = false;
  const std::string written = ReadAll(bytes, piece_nbytes, &failed);
  FUZZ_CHECK(bytes.compare(0, written.size(), written) == 0);
  // The pieces change nothing.
  bool failed_in_one = false;
  FUZZ_CHECK(ReadAll(bytes, bytes.size() + 1, &failed_in_one) == written);
  FUZZ_CHECK(failed == failed_in_one);
}

}  // namespace ring_keras
