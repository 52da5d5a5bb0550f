#include "tf_ops/tls/tls_session.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "tests/cpp/support/test.h"

namespace ring_keras::tls {
namespace {

const std::string kKey(32, 'K');
const std::string kOtherKey(32, 'L');

bool Has(const Status& status, const std::string& words) {
  return status.message().find(words) != std::string::npos;
}

// One direction of a network that somebody else owns.
struct Wire {
  std::string bytes;        // Sent, and not received.
  std::string record;       // All that ever was sent.
  size_t room = SIZE_MAX;   // How much `bytes` may hold.
  size_t chunk = SIZE_MAX;  // Moves at once.
  bool ended = false;
};

std::unique_ptr<Session> MakeSession(Role role, const std::string& key,
                                     Wire* out, Wire* in,
                                     uint64_t max_records = kMaxRecordsPerKey) {
  SessionOptions options;
  options.role = role;
  options.key = key;
  options.read_ahead = true;
  options.max_records_per_key = max_records;
  auto send = [out](const void* data, size_t nbytes) -> ssize_t {
    const size_t room = out->room - std::min(out->room, out->bytes.size());
    const size_t count = std::min({nbytes, out->chunk, room});
    out->bytes.append(static_cast<const char*>(data), count);
    out->record.append(static_cast<const char*>(data), count);
    return static_cast<ssize_t>(count);
  };
  auto receive = [in](void* data, size_t nbytes) -> ssize_t {
    const size_t count = std::min({nbytes, in->chunk, in->bytes.size()});
    if (count == 0) return in->ended ? -1 : 0;
    std::memcpy(data, in->bytes.data(), count);
    in->bytes.erase(0, count);
    return static_cast<ssize_t>(count);
  };
  auto session = Session::Create(options, {send, receive});
  EXPECT_OK(session.status());
  return std::move(session.value());
}

struct Ends {
  explicit Ends(const std::string& client_key = kKey,
                uint64_t max_records = kMaxRecordsPerKey)
      : client(MakeSession(Role::kClient, client_key, &to_server, &to_client,
                           max_records)),
        server(MakeSession(Role::kServer, kKey, &to_client, &to_server,
                           max_records)) {}

  void Agree() {
    for (int turn = 0; turn < 1000; ++turn) {
      client->Advance();
      server->Advance();
    }
  }

  Wire to_server;
  Wire to_client;
  std::unique_ptr<Session> client;
  std::unique_ptr<Session> server;
};

// Writes all of it, from several pieces; the wire has the room.
void Write(Session& session, const std::string& bytes) {
  size_t sent = 0;
  while (sent < bytes.size()) {
    char* data = const_cast<char*>(bytes.data()) + sent;
    const size_t left = bytes.size() - sent;
    const size_t first = std::min<size_t>(left, 40);
    const iovec parts[] = {{data, first}, {data + first, left - first}};
    const ssize_t count = session.Write(parts, 2);
    ASSERT_TRUE(count > 0) << session.end().message();
    sent += static_cast<size_t>(count);
  }
}

std::string ReadAll(Session& session) {
  std::string bytes;
  std::string piece(5000, '\0');
  while (true) {
    const iovec part = {piece.data(), piece.size()};
    const ssize_t count = session.Read(&part, 1);
    if (count <= 0) return bytes;
    bytes.append(piece, 0, static_cast<size_t>(count));
  }
}

std::string Pattern(size_t nbytes) {
  std::string bytes(nbytes, '\0');
  for (size_t i = 0; i < nbytes; ++i) {
    bytes[i] = static_cast<char>(i * 31 + (i >> 8) * 7);
  }
  return bytes;
}

RING_TEST(WhatIsWrittenIsRead) {
  for (size_t chunk : {size_t{1}, size_t{1000}, SIZE_MAX}) {
    Ends ends;
    ends.to_client.chunk = ends.to_server.chunk = chunk;
    ends.Agree();
    ASSERT_TRUE(ends.client->established()) << ends.client->end().message();
    ASSERT_TRUE(ends.server->established()) << ends.server->end().message();
    for (size_t nbytes : {1, 39, 40, 41, 16384, 16385, 100'000}) {
      const std::string sent = Pattern(nbytes);
      Write(*ends.client, sent);
      EXPECT_TRUE(ReadAll(*ends.server) == sent);
      Write(*ends.server, sent);
      EXPECT_TRUE(ReadAll(*ends.client) == sent);
    }
  }
}

RING_TEST(NothingIsReadableOnTheWire) {
  Ends ends;
  ends.Agree();
  const std::string secret = "seventeen gradient values";
  Write(*ends.client, secret + std::string(20'000, 'z'));
  EXPECT_EQ(ends.to_server.record.find(secret.substr(0, 9)), std::string::npos);
  EXPECT_EQ(ends.to_server.record.find("zzzzzzzz"), std::string::npos);
  EXPECT_EQ(ReadAll(*ends.server).substr(0, secret.size()), secret);
}

RING_TEST(AFullWireHoldsBackAndLosesNothing) {
  Ends ends;
  ends.Agree();
  ends.to_server.room = 1000;
  const std::string sent = Pattern(30'000);
  const iovec part = {const_cast<char*>(sent.data()), sent.size()};
  ASSERT_EQ(ends.client->Write(&part, 1), 30'000);
  EXPECT_TRUE(ends.client->has_pending());
  EXPECT_EQ(ends.client->Write(&part, 1), 0);
  std::string read;
  while (ends.client->has_pending()) {
    read += ReadAll(*ends.server);
    EXPECT_TRUE(ends.client->Advance());
  }
  read += ReadAll(*ends.server);
  EXPECT_TRUE(read == sent);
}

RING_TEST(AKeyIsNotUsedForEver) {
  Ends ends(kKey, /*max_records=*/2);
  ends.Agree();
  for (int i = 0; i < 20; ++i) {
    const std::string sent = Pattern(100 + i);
    Write(*ends.client, sent);
    EXPECT_TRUE(ReadAll(*ends.server) == sent);
  }
  // The news of a new key is a record of its own.
  Ends other;
  other.Agree();
  for (int i = 0; i < 20; ++i) Write(*other.client, Pattern(100 + i));
  EXPECT_GT(ends.to_server.record.size(), other.to_server.record.size());
}

RING_TEST(AnotherKeyIsRefusedAtBothEnds) {
  Ends ends(kOtherKey);
  ends.Agree();
  EXPECT_FALSE(ends.client->established());
  EXPECT_FALSE(ends.server->established());
  for (const Session* end : {ends.client.get(), ends.server.get()}) {
    EXPECT_TRUE(Has(end->end(), "does not hold the job's secret"))
        << end->end().message();
  }
}

RING_TEST(AFlippedBitEndsTheConnectionAtBothEnds) {
  // In a record's header, its data and its tag.
  for (size_t place : {1, 4, 5, 100, 1020}) {
    Ends ends;
    ends.Agree();
    Write(*ends.client, Pattern(1000));
    ends.to_server.bytes[place] ^= 1;
    // A longer record is awaited in vain until there is more.
    Write(*ends.client, Pattern(600));
    EXPECT_EQ(ReadAll(*ends.server), "");
    EXPECT_TRUE(Has(ends.server->end(), "changed on its way"))
        << place << ": " << ends.server->end().message();
    EXPECT_EQ(ReadAll(*ends.client), "");
    EXPECT_TRUE(Has(ends.client->end(), "changed on its way"))
        << place << ": " << ends.client->end().message();
  }
}

// What one write puts on the wire.
std::string RecordOf(Ends& ends, const std::string& text) {
  const size_t before = ends.to_server.bytes.size();
  Write(*ends.client, text);
  return ends.to_server.bytes.substr(before);
}

RING_TEST(RepeatedDroppedAndExchangedRecordsEndTheConnection) {
  for (const std::string order : {"112", "2", "21", "13"}) {
    Ends ends;
    ends.Agree();
    std::vector<std::string> records;
    for (const char* text : {"first", "second", "third"}) {
      records.push_back(RecordOf(ends, text));
    }
    ends.to_server.bytes.clear();
    for (char c : order) ends.to_server.bytes += records[c - '1'];
    const std::string read = ReadAll(*ends.server);
    EXPECT_EQ(read, order[0] == '1' ? "first" : "");
    EXPECT_TRUE(Has(ends.server->end(), "changed on its way")) << order;
  }
}

RING_TEST(RecordsOfAnEarlierConnectionAreRefused) {
  Ends earlier;
  earlier.Agree();
  const std::string old = RecordOf(earlier, "first");
  Ends ends;
  ends.Agree();
  ends.to_server.bytes = old;
  EXPECT_EQ(ReadAll(*ends.server), "");
  EXPECT_TRUE(Has(ends.server->end(), "changed on its way"));
}

RING_TEST(AnEarlierHandshakeIsRefused) {
  Ends earlier;
  earlier.Agree();
  Wire to_server;
  Wire to_client;
  to_server.bytes = earlier.to_server.record;
  const auto server = MakeSession(Role::kServer, kKey, &to_client, &to_server);
  for (int turn = 0; turn < 10; ++turn) server->Advance();
  EXPECT_FALSE(server->established());
  EXPECT_FALSE(server->end().ok());
}

RING_TEST(ACutIsToldFromAnEnd) {
  Ends ends;
  ends.Agree();
  Write(*ends.client, "last words");
  ends.client->CloseForWriting();
  EXPECT_EQ(ReadAll(*ends.server), "last words");
  EXPECT_EQ(ends.server->end().code(), StatusCode::kPeerLost);
  EXPECT_FALSE(ends.server->cut_off());

  Ends cut;
  cut.Agree();
  Write(*cut.client, "last words");
  cut.to_server.bytes.resize(cut.to_server.bytes.size() - 1);
  cut.to_server.ended = true;
  EXPECT_EQ(ReadAll(*cut.server), "");
  EXPECT_EQ(cut.server->end().code(), StatusCode::kPeerLost);
  EXPECT_TRUE(cut.server->cut_off());
}

RING_TEST(GarbageIsNoHandshake) {
  Wire to_server;
  Wire to_client;
  to_server.bytes = "GET / HTTP/1.0\r\n\r\n";
  const auto server = MakeSession(Role::kServer, kKey, &to_client, &to_server);
  server->Advance();
  EXPECT_TRUE(Has(server->end(), "does not hold the job's secret"))
      << server->end().message();
}

}  // namespace
}  // namespace ring_keras::tls
