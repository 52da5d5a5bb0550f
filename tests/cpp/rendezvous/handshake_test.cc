#include "tf_ops/rendezvous/handshake.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <future>
#include <string>

#include "tests/cpp/support/test.h"
#include "tf_ops/common/socket.h"

namespace ring_keras {
namespace {

using testing::Has;

const std::string kServerToken(32, 'T');
const std::string kOtherToken(32, 'U');
constexpr uint64_t kServerGeneration = 3;
constexpr int kServerRank = 1;

struct SocketPair {
  explicit SocketPair(int flags = 0) {
    int fds[2] = {-1, -1};
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | flags, 0, fds),
              0);
    client = FileDescriptor(fds[0]);
    server = FileDescriptor(fds[1]);
  }
  FileDescriptor client;
  FileDescriptor server;
};

// What a client says about itself; the defaults are right.
struct ClientSetup {
  Purpose purpose = Purpose::kRankToRank;
  HandshakeParty self = {0, kServerGeneration, 7};
  int wanted_rank = kServerRank;
  std::string token = kServerToken;
};

struct Outcome {
  StatusOr<HandshakeParty> client;
  StatusOr<HandshakeParty> server;
};

// A server with one peer, for which it waits.
StatusOr<HandshakeParty> ServeOn(int fd) {
  ServerHandshake handshake(Purpose::kRankToRank,
                            {kServerRank, kServerGeneration}, kServerToken);
  while (!handshake.proven()) {
    EXPECT_TRUE(WaitUntilReady(fd, POLLIN, Deadline::After(20)).value());
    std::string bytes(handshake.bytes_wanted(), '\0');
    const ssize_t got = recv(fd, bytes.data(), bytes.size(), MSG_DONTWAIT);
    if (got <= 0) return Status(StatusCode::kPeerLost, "the client has gone");
    std::string reply;
    const Status status =
        handshake.Receive({bytes.data(), static_cast<size_t>(got)}, &reply);
    send(fd, reply.data(), reply.size(), MSG_NOSIGNAL);
    RING_KERAS_RETURN_IF_ERROR(status);
  }
  const std::string acceptance = handshake.Accept();
  send(fd, acceptance.data(), acceptance.size(), MSG_NOSIGNAL);
  return handshake.client();
}

Outcome Shake(SocketPair& pair, const ClientSetup& setup) {
  auto server = std::async(std::launch::async, [&] {
    StatusOr<HandshakeParty> result = ServeOn(pair.server.get());
    if (!result.ok()) pair.server.Close();
    return result;
  });
  StatusOr<HandshakeParty> client =
      HandshakeAsClient(pair.client.get(), setup.purpose, setup.self,
                        setup.wanted_rank, setup.token, Deadline::After(20));
  if (!client.ok()) pair.client.Close();
  return {client, server.get()};
}

Status ProveOn(int fd, double timeout_s = 20,
               const std::string& token = kServerToken) {
  return HandshakeAsClient(fd, Purpose::kRankToRank, {0, kServerGeneration, 0},
                           kServerRank, token, Deadline::After(timeout_s))
      .status();
}

RING_TEST(BothSidesProveThemselves) {
  for (int flags : {0, static_cast<int>(SOCK_NONBLOCK)}) {
    SocketPair pair(flags);
    const Outcome outcome = Shake(pair, {});
    ASSERT_OK(outcome.client.status());
    ASSERT_OK(outcome.server.status());
    EXPECT_EQ(outcome.client.value().rank, kServerRank);
    EXPECT_EQ(outcome.client.value().generation, kServerGeneration);
    EXPECT_EQ(outcome.server.value().rank, 0);
    EXPECT_EQ(outcome.server.value().stream, 7u);
    EXPECT_EQ(outcome.server.value().generation, kServerGeneration);
  }
}

RING_TEST(LeavesWhatFollowsUnread) {
  SocketPair pair;
  auto client = std::async(std::launch::async, [&] {
    StatusOr<HandshakeParty> result = HandshakeAsClient(
        pair.client.get(), Purpose::kRankToRank, {0, kServerGeneration, 0},
        kServerRank, kServerToken, Deadline::After(20));
    EXPECT_EQ(send(pair.client.get(), "data", 4, 0), 4);
    return result;
  });
  ASSERT_OK(ServeOn(pair.server.get()).status());
  ASSERT_OK(client.get().status());
  char bytes[8];
  ASSERT_EQ(recv(pair.server.get(), bytes, sizeof(bytes), 0), 4);
  EXPECT_EQ(std::string(bytes, 4), "data");
}

RING_TEST(WrongTokenIsRefusedWithoutLeakingIt) {
  SocketPair pair;
  ClientSetup setup;
  setup.token = kOtherToken;
  const Outcome outcome = Shake(pair, setup);
  for (const Status& status :
       {outcome.client.status(), outcome.server.status()}) {
    EXPECT_EQ(status.code(), StatusCode::kUnauthenticated);
    EXPECT_TRUE(Has(status.message(), "wrong token")) << status.message();
    EXPECT_FALSE(Has(status.message(), "TTTT") ||
                 Has(status.message(), "UUUU"));
  }
}

RING_TEST(WrongGenerationSaysBoth) {
  SocketPair pair;
  ClientSetup setup;
  setup.self.generation = 2;
  const Outcome outcome = Shake(pair, setup);
  for (const Status& status :
       {outcome.client.status(), outcome.server.status()}) {
    EXPECT_EQ(status.code(), StatusCode::kUnauthenticated);
    EXPECT_TRUE(Has(status.message(), "wrong generation: expected 3, came 2"))
        << status.message();
  }
}

RING_TEST(WrongRankAndPurposeAreRefused) {
  SocketPair rank_pair;
  ClientSetup wrong_rank;
  wrong_rank.wanted_rank = 5;
  Outcome outcome = Shake(rank_pair, wrong_rank);
  EXPECT_TRUE(Has(outcome.server.status().message(),
                  "looks for rank 5, this is rank 1"))
      << outcome.server.status().message();
  EXPECT_EQ(outcome.client.status().code(), StatusCode::kUnauthenticated);

  SocketPair purpose_pair;
  ClientSetup wrong_purpose;
  wrong_purpose.purpose = Purpose::kStore;
  outcome = Shake(purpose_pair, wrong_purpose);
  EXPECT_TRUE(Has(outcome.server.status().message(), "wrong purpose"))
      << outcome.server.status().message();
  EXPECT_TRUE(Has(outcome.client.status().message(), "wrong purpose"))
      << outcome.client.status().message();
}

RING_TEST(TokenOfAnotherLengthIsAnArgumentError) {
  SocketPair pair;
  EXPECT_EQ(ProveOn(pair.client.get(), 1, "short").code(),
            StatusCode::kInvalidArgument);
}

RING_TEST(GarbageIsKnownByItsFirstByte) {
  SocketPair pair;
  // The peer says no more, and keeps the connection open.
  ASSERT_EQ(send(pair.client.get(), "G", 1, 0), 1);
  const Status status = ServeOn(pair.server.get()).status();
  EXPECT_EQ(status.code(), StatusCode::kUnauthenticated);
  EXPECT_TRUE(Has(status.message(), "not a ring_keras peer"))
      << status.message();
  EXPECT_TRUE(Has(status.message(), "47")) << status.message();
}

RING_TEST(AnotherVersionIsNamed) {
  SocketPair pair;
  ASSERT_EQ(send(pair.client.get(), "RINGKS\x09", 7, 0), 7);
  const Status status = ServeOn(pair.server.get()).status();
  EXPECT_TRUE(Has(status.message(), "expected 2, came 9")) << status.message();
}

RING_TEST(SilentPeerIsTooSlow) {
  SocketPair pair;
  const Status status = ProveOn(pair.client.get(), 0.05);
  EXPECT_EQ(status.code(), StatusCode::kDeadlineExceeded);
  EXPECT_TRUE(Has(status.message(), "too slow")) << status.message();
}

// Answers a client with the first `nbytes` of what a server says.
void AnswerInPart(int fd, size_t nbytes) {
  ServerHandshake server(Purpose::kRankToRank, {kServerRank, kServerGeneration},
                         kServerToken);
  std::string challenge;
  while (challenge.empty()) {
    std::string bytes(server.bytes_wanted(), '\0');
    const ssize_t got = recv(fd, bytes.data(), bytes.size(), 0);
    ASSERT_TRUE(got > 0);
    ASSERT_OK(
        server.Receive({bytes.data(), static_cast<size_t>(got)}, &challenge));
  }
  send(fd, challenge.data(), std::min(nbytes, challenge.size()), MSG_NOSIGNAL);
}

RING_TEST(PeerThatStopsHalfwayIsTooSlowOrLost) {
  for (size_t nbytes : {size_t{0}, size_t{3}, size_t{8}, SIZE_MAX}) {
    SocketPair pair;
    auto server =
        std::async(std::launch::async, AnswerInPart, pair.server.get(), nbytes);
    Status status = ProveOn(pair.client.get(), 0.05);
    EXPECT_TRUE(Has(status.message(), "too slow")) << status.message();
    server.get();

    SocketPair closed;
    server = std::async(std::launch::async, [&] {
      AnswerInPart(closed.server.get(), nbytes);
      shutdown(closed.server.get(), SHUT_WR);
    });
    status = ProveOn(closed.client.get());
    EXPECT_EQ(status.code(), StatusCode::kPeerLost);
    server.get();
  }
}

RING_TEST(PeerThatEchoesEverythingIsNoPeer) {
  SocketPair pair;
  auto echo = std::async(std::launch::async, [&] {
    char bytes[256];
    ssize_t got = 0;
    while ((got = recv(pair.server.get(), bytes, sizeof(bytes), 0)) > 0) {
      send(pair.server.get(), bytes, static_cast<size_t>(got), MSG_NOSIGNAL);
    }
  });
  const Status status =
      HandshakeAsClient(pair.client.get(), Purpose::kRankToRank,
                        {kServerRank, kServerGeneration, 0}, kServerRank,
                        kServerToken, Deadline::After(20))
          .status();
  EXPECT_EQ(status.code(), StatusCode::kUnauthenticated);
  shutdown(pair.client.get(), SHUT_RDWR);
}

// Every message of one good handshake.
struct Recording {
  std::string hello, challenge, proof, acceptance;
};

ClientHandshake NewClient() {
  return ClientHandshake(Purpose::kRankToRank, {0, kServerGeneration, 0},
                         kServerRank, kServerToken);
}

ServerHandshake NewServer() {
  return ServerHandshake(Purpose::kRankToRank, {kServerRank, kServerGeneration},
                         kServerToken);
}

// Feeds a whole message, as a socket would: no more than is wanted at once.
template <typename Handshake>
Status Feed(Handshake& handshake, std::string message, std::string* reply) {
  while (!message.empty()) {
    const std::string piece = message.substr(0, handshake.bytes_wanted());
    if (piece.empty()) {
      return Status(StatusCode::kInternal, "it wants no more bytes");
    }
    message.erase(0, piece.size());
    RING_KERAS_RETURN_IF_ERROR(handshake.Receive(piece, reply));
  }
  return Status::Ok();
}

Recording Record(ClientHandshake client, ServerHandshake server) {
  Recording recording;
  recording.hello = client.Start().value();
  EXPECT_OK(Feed(server, recording.hello, &recording.challenge));
  EXPECT_OK(Feed(client, recording.challenge, &recording.proof));
  std::string nothing;
  EXPECT_OK(Feed(server, recording.proof, &nothing));
  EXPECT_TRUE(server.proven());
  recording.acceptance = server.Accept();
  EXPECT_OK(Feed(client, recording.acceptance, &nothing));
  EXPECT_TRUE(client.proven());
  return recording;
}

RING_TEST(RecordedBytesProveNothing) {
  const Recording old = Record(NewClient(), NewServer());
  std::string reply;

  ServerHandshake server = NewServer();
  EXPECT_OK(Feed(server, old.hello, &reply));
  Status status = Feed(server, old.proof, &reply);
  EXPECT_TRUE(Has(status.message(), "wrong token")) << status.message();
  EXPECT_FALSE(server.proven());

  ClientHandshake client = NewClient();
  ASSERT_OK(client.Start().status());
  EXPECT_OK(Feed(client, old.challenge, &reply));
  status = Feed(client, old.acceptance, &reply);
  EXPECT_TRUE(Has(status.message(), "wrong token")) << status.message();
  EXPECT_FALSE(client.proven());
}

// The client's own proof, sent back to it as if it were the server's
// acceptance.
RING_TEST(ReflectedProofProvesNothing) {
  ClientHandshake client = NewClient();
  ServerHandshake server = NewServer();
  std::string challenge, proof, reply;
  EXPECT_OK(Feed(server, client.Start().value(), &challenge));
  EXPECT_OK(Feed(client, challenge, &proof));
  std::string acceptance = proof;
  acceptance[7] = static_cast<char>(rendezvous::MessageType::kAcceptance);
  EXPECT_EQ(Feed(client, acceptance, &reply).code(),
            StatusCode::kUnauthenticated);
  EXPECT_FALSE(client.proven());
}

// Somebody in the middle changes any one byte on the way: nobody is proven to
// whoever got other bytes than were sent.
RING_TEST(AChangedByteProvesNothing) {
  const Recording sample = Record(NewClient(), NewServer());
  for (size_t i = 0; i < sample.hello.size(); ++i) {
    ClientHandshake client = NewClient();
    ServerHandshake server = NewServer();
    std::string hello = client.Start().value();
    hello[i] = static_cast<char>(hello[i] ^ 1);
    std::string challenge, proof, acceptance;
    if (!Feed(server, hello, &challenge).ok()) continue;
    EXPECT_OK(Feed(client, challenge, &proof));
    EXPECT_FALSE(Feed(server, proof, &acceptance).ok()) << "byte " << i;
    EXPECT_FALSE(server.proven());
  }
  for (size_t i = 0; i < sample.challenge.size(); ++i) {
    ClientHandshake client = NewClient();
    ServerHandshake server = NewServer();
    std::string challenge, proof, acceptance;
    EXPECT_OK(Feed(server, client.Start().value(), &challenge));
    challenge[i] = static_cast<char>(challenge[i] ^ 1);
    if (!Feed(client, challenge, &proof).ok()) continue;
    EXPECT_FALSE(Feed(server, proof, &acceptance).ok()) << "byte " << i;
    EXPECT_FALSE(server.proven());
  }
}

RING_TEST(AWrongTypeOfMessageIsNoPeer) {
  const Recording old = Record(NewClient(), NewServer());
  std::string reply;
  ServerHandshake server = NewServer();
  EXPECT_FALSE(Feed(server, old.proof, &reply).ok());
  ClientHandshake client = NewClient();
  ASSERT_OK(client.Start().status());
  EXPECT_FALSE(Feed(client, old.acceptance, &reply).ok());
  EXPECT_FALSE(client.proven());
}

RING_TEST(EveryRefusalExplainsItself) {
  for (Refusal refusal :
       {Refusal::kWrongVersion, Refusal::kWrongPurpose, Refusal::kWrongRank,
        Refusal::kWrongGeneration, Refusal::kWrongToken,
        Refusal::kRankOutOfRange, Refusal::kRankTaken, Refusal::kRankEnded}) {
    ClientHandshake client = NewClient();
    ASSERT_OK(client.Start().status());
    std::string reply;
    const Status status = Feed(client, NewServer().Refuse(refusal), &reply);
    EXPECT_EQ(status.code(), StatusCode::kUnauthenticated);
    EXPECT_TRUE(Has(status.message(), "rank 1 refused rank 0: "))
        << status.message();
  }
}

}  // namespace
}  // namespace ring_keras
