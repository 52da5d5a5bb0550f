// What goes wrong between two ranks: operations given up, streams that end,
// peers that send nonsense.
#include <chrono>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "tests/cpp/support/test.h"
#include "tests/cpp/transport/transport_test_support.h"
#include "tf_ops/transport/pair.h"

namespace ring_keras {
namespace {

constexpr uint64_t kNextKey = 78;

void ExpectAMessagePasses(Link& link, uint64_t key) {
  const std::string data = Pattern(200000, 9);
  std::string got(data.size(), '\0');
  SendOperation send;
  ReceiveOperation receive = Into(&got);
  link.second().Receive(key, 0, &receive);
  link.first().Send(key, 0, data.data(), data.size(), &send);
  link.PumpUntil([&] { return send.done() && receive.done(); });
  EXPECT_TRUE(got == data);
}

enum class WhoCancels { kSender, kReceiver, kBoth };

// The memory goes as soon as the operation is cancelled, which AddressSanitizer
// watches; the next message must find its frame.
void CancelInTheMiddle(Link& link, WhoCancels who, bool combine) {
  auto data = std::make_unique<std::string>(Pattern(5000000, 1));
  auto got = std::make_unique<std::string>(data->size(), '\0');
  auto send = std::make_unique<SendOperation>();
  auto receive = std::make_unique<ReceiveOperation>(Into(got.get()));
  if (combine) {
    receive->combine = [](void* out, const void*, const void* b, size_t count) {
      std::memcpy(out, b, count);
    };
  }
  link.second().Receive(kKey, 0, receive.get());
  link.first().Send(kKey, 0, data->data(), data->size(), send.get());
  link.PumpUntil([&] { return (*got)[0] == (*data)[0] && (*got)[1] != 0; });
  if (who != WhoCancels::kReceiver) {
    link.first().Cancel(kKey);
    link.PumpUntil([&] { return !link.first().Holds(kKey); });
    send.reset();
    data.reset();
  }
  if (who != WhoCancels::kSender) {
    link.second().Cancel(kKey);
    link.PumpUntil([&] { return !link.second().Holds(kKey); });
    receive.reset();
    got.reset();
  }
  ExpectAMessagePasses(link, kNextKey);
  // The rest of what was under way still refers to this memory.
  if (send != nullptr) link.PumpUntil([&] { return send->done(); });
  link.second().Cancel(kKey);
}

RING_TEST(CancellingInTheMiddleKeepsTheStreamsUsable) {
  for (WhoCancels who :
       {WhoCancels::kSender, WhoCancels::kReceiver, WhoCancels::kBoth}) {
    for (bool combine : {false, true}) {
      for (const auto& link : Link::OfEveryKind()) {
        CancelInTheMiddle(*link, who, combine);
      }
    }
  }
}

// Where a stream moves payloads by itself it cannot be called off.
RING_TEST(MemoryIsHeldUntilAStreamThatMovesItByItselfHas) {
  for (bool combine : {false, true}) {
    for (bool peer_ends : {false, true}) {
      const auto link = Link::Direct(1);
      link->to_second(0).direct_held = true;
      const std::string data = Pattern(50000, 1);
      std::string got(data.size(), '\0');
      SendOperation send;
      ReceiveOperation receive = Into(&got);
      if (combine) {
        receive.combine = [](void*, const void*, const void*, size_t) {
          EXPECT_TRUE(false) << "it was cancelled";
        };
      }
      link->second().Receive(kKey, 0, &receive);
      link->first().Send(kKey, 0, data.data(), data.size(), &send);
      link->first().Pump();
      for (int turn = 0; turn < 5; ++turn) link->second().Pump();
      EXPECT_FALSE(send.done() || receive.done() || link->first().flushed());
      link->first().Cancel(kKey);
      link->second().Cancel(kKey);
      EXPECT_TRUE(link->first().Holds(kKey));
      EXPECT_FALSE(link->first().Holds(kNextKey));
      // What is combined comes into memory of the pair's own.
      EXPECT_EQ(link->second().Holds(kKey), !combine);
      if (peer_ends) {
        // It will take nothing more.
        link->to_first(0).ended = true;
        EXPECT_FALSE(link->first().Holds(kKey));
        continue;
      }
      link->to_second(0).direct_held = false;
      link->PumpUntil([&] {
        return !link->first().Holds(kKey) && !link->second().Holds(kKey);
      });
      ExpectAMessagePasses(*link, kNextKey);
    }
  }
}

// A peer that takes nothing more, and of which the stream does not say so.
RING_TEST(MemoryIsNotHeldForAPeerThatIsGone) {
  for (bool process_ended : {false, true}) {
    for (bool closed : {false, true}) {
      const auto link = Link::Direct(1);
      Pair& pair = link->first();
      link->to_second(0).direct_held = link->to_first(0).direct_held = true;
      const std::string data = Pattern(50000, 1);
      std::string got(data.size(), '\0');
      SendOperation send, answer;
      ReceiveOperation receive = Into(&got);
      pair.Receive(kNextKey, 0, &receive);
      link->second().Send(kNextKey, 0, data.data(), data.size(), &answer);
      link->second().Pump();
      pair.Pump();
      pair.Send(kKey, 0, data.data(), data.size(), &send);
      pair.Pump();
      if (closed) {
        link->to_first(0).bytes += std::string(sizeof(FrameHeader), 'x');
        pair.Pump();
        ASSERT_TRUE(pair.closed());
      }
      pair.Cancel(kKey);
      pair.Cancel(kNextKey);
      pair.OnPeerGone(process_ended);
      // Its last bytes may still come.
      EXPECT_TRUE(pair.Holds(kKey) && pair.Holds(kNextKey));
      std::this_thread::sleep_for(std::chrono::milliseconds(1100));
      EXPECT_EQ(pair.Holds(kKey), !process_ended && !closed);
      // Who has left may still send.
      EXPECT_EQ(pair.Holds(kNextKey), !process_ended);
    }
  }
}

RING_TEST(CancellingForgetsWhatHasNotBegunAndWhatCameEarly) {
  const auto link = Link::Memory(1);
  const std::string data = Pattern(1000, 1);
  SendOperation send;
  link->first().Send(kKey, 0, data.data(), data.size(), &send);
  while (link->second().Pump()) {
  }
  link->second().Cancel(kKey);
  std::string got(data.size(), '\0');
  ReceiveOperation receive = Into(&got);
  link->second().Receive(kKey, 0, &receive);
  EXPECT_EQ(receive.received, 0);
}

// A peer that does not know yet that the collective failed here.
RING_TEST(WhatComesForACancelledKeyIsDropped) {
  for (const auto& link : Link::OfEveryKind()) {
    link->second().Cancel(kKey);
    for (size_t nbytes : {size_t{10}, size_t{5000}, size_t{3000000}}) {
      const std::string late = Pattern(nbytes, 1);
      SendOperation send;
      link->first().Send(kKey, 0, late.data(), late.size(), &send);
      link->PumpUntil([&] { return send.done(); });
    }
    ExpectAMessagePasses(*link, kNextKey);
    while (link->second().Pump()) {
    }
    // Nothing has been kept that a receive could find.
    std::string got(10, '\0');
    ReceiveOperation receive = Into(&got);
    link->second().Receive(kKey, 0, &receive);
    EXPECT_EQ(receive.received, 0);
    link->second().Cancel(kKey);
  }
}

// A frame that a broken or hostile peer might send after valid handshakes.
void ExpectClosed(const FrameHeader& header, const std::string& why) {
  const auto link = Link::Memory(1);
  std::string target(100, '\0');
  ReceiveOperation receive = Into(&target);
  link->second().Receive(kKey, 0, &receive);
  link->to_second(0).bytes.assign(reinterpret_cast<const char*>(&header),
                                  sizeof(header));
  link->to_second(0).bytes += std::string(200, 'x');
  link->second().Pump();
  EXPECT_TRUE(link->second().closed()) << why;
  EXPECT_EQ(target, std::string(100, '\0')) << why;
  EXPECT_FALSE(link->second().Pump()) << why;
}

FrameHeader DataHeader(uint64_t offset, uint64_t nbytes) {
  FrameHeader header;
  header.key = kKey;
  header.offset = offset;
  header.nbytes = nbytes;
  return header;
}

RING_TEST(AMalformedFrameClosesThePair) {
  FrameHeader header = DataHeader(0, 100);
  header.magic = 0x20544547;  // "GET "
  ExpectClosed(header, "magic");
  ExpectClosed(DataHeader(0, kMaxDataFrameBytes + 1), "data size");
  header = DataHeader(0, kMaxControlBytes + 1);
  header.type = FrameType::kAnnouncement;
  ExpectClosed(header, "control size");
  ExpectClosed(DataHeader(0, 0), "no data");
  ExpectClosed(DataHeader(0, 101), "longer than expected");
  ExpectClosed(DataHeader(99, 2), "past the end");
  // offset + nbytes wraps around to 1.
  ExpectClosed(DataHeader(~uint64_t{0}, 2), "wrapped");
}

RING_TEST(AnEarlyMessageOfTheWrongSizeClosesThePair) {
  const auto link = Link::Memory(1);
  const std::string data = Pattern(101, 0);
  SendOperation send;
  link->first().Send(kKey, 0, data.data(), data.size(), &send);
  while (link->second().Pump()) {
  }
  std::string target(100, '\0');
  ReceiveOperation receive = Into(&target);
  link->second().Receive(kKey, 0, &receive);
  EXPECT_TRUE(link->second().closed());
  EXPECT_EQ(target, std::string(100, '\0'));
}

// A stream's end with nobody behind it: what comes is written by the test.
struct LooseEnd {
  explicit LooseEnd(size_t max_early_nbytes) {
    Streams streams;
    streams.push_back(std::make_unique<MemoryStream>(&out, &in));
    pair = std::make_unique<Pair>(std::move(streams), max_early_nbytes);
  }
  void Comes(const FrameHeader& header) {
    in.bytes.append(reinterpret_cast<const char*>(&header), sizeof(header));
    in.bytes += std::string(header.nbytes, 'x');
    while (pair->Pump()) {
    }
  }
  MemoryPipe in;
  MemoryPipe out;
  std::unique_ptr<Pair> pair;
};

RING_TEST(TooMuchEarlyDataIsAnErrorThatTellsWhatItWasFor) {
  LooseEnd end(1000);
  FrameHeader header = DataHeader(0, 400);
  end.Comes(header);
  header.key = kNextKey;
  end.Comes(header);
  EXPECT_FALSE(end.pair->closed());
  // What is taken or given up leaves room.
  std::string got(400, '\0');
  ReceiveOperation receive = Into(&got);
  end.pair->Receive(kKey, 0, &receive);
  EXPECT_TRUE(receive.done());
  end.pair->Cancel(kNextKey);
  for (uint32_t tag = 1; tag <= 2; ++tag) {
    header.key = kKey;
    header.tag = tag;
    end.Comes(header);
  }
  EXPECT_FALSE(end.pair->closed());
  // What is expected is not early.
  std::string expected(400, '\0');
  ReceiveOperation posted = Into(&expected);
  end.pair->Receive(kKey, 3, &posted);
  header.tag = 3;
  end.Comes(header);
  EXPECT_TRUE(posted.done());
  header.tag = 4;
  end.Comes(header);
  EXPECT_TRUE(end.pair->closed());
  EXPECT_EQ(end.pair->failure().code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(end.pair->overflow_key(), kKey);
}

// Their headers come long before them, and each needs its memory at once.
RING_TEST(EarlyDataCountBeforeTheyHaveComeAroundTheFlow) {
  LooseEnd end(1000);
  end.out.direct_nbytes = 100;
  const auto comes = [&end](uint32_t tag, uint64_t key) {
    FrameHeader header = DataHeader(0, 400);
    header.key = key;
    header.tag = tag;
    end.in.bytes.append(reinterpret_cast<const char*>(&header), sizeof(header));
    while (end.pair->Pump()) {
    }
  };
  comes(0, kKey);
  comes(1, kNextKey);
  EXPECT_FALSE(end.pair->closed());
  // What is given up leaves room.
  end.pair->Cancel(kNextKey);
  comes(1, kKey);
  EXPECT_FALSE(end.pair->closed());
  // So does what has come and is taken.
  const std::string data = Pattern(400, 1);
  end.in.direct.emplace_back(data.data(), data.size());
  while (end.pair->Pump()) {
  }
  std::string got(400, '\0');
  ReceiveOperation receive = Into(&got);
  end.pair->Receive(kKey, 0, &receive);
  EXPECT_TRUE(receive.done() && got == data);
  comes(2, kKey);
  EXPECT_FALSE(end.pair->closed());
  comes(3, kKey);
  EXPECT_EQ(end.pair->failure().code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(end.pair->overflow_key(), kKey);
}

// It would need that memory for all that this rank sends ahead.
RING_TEST(OnlySoMuchGoesAroundAFlowAtATime) {
  const auto link = Link::Direct(1);
  link->to_second(0).direct_held = true;
  // Pages that nobody touches.
  constexpr size_t kBytes = size_t{60} << 20;
  const std::unique_ptr<char[]> data(new char[kBytes]);
  SendOperation send;
  for (uint32_t tag = 0; tag < 6; ++tag) {
    link->first().Send(kKey, tag, data.get(), kBytes, &send);
  }
  link->first().Pump();
  EXPECT_EQ(link->to_second(0).direct.size(), 4);
  EXPECT_FALSE(link->first().flushed());
  link->second().Cancel(kKey);
  link->to_second(0).direct_held = false;
  link->PumpUntil([&] { return send.done(); });
}

// It would be done while a frame for it is still on its way into its memory.
RING_TEST(AMessageThatComesTwiceClosesThePair) {
  LooseEnd end(kMaxEarlyBytes);
  std::string got(100, '\0');
  ReceiveOperation receive = Into(&got);
  end.pair->Receive(kKey, 0, &receive);
  end.Comes(DataHeader(0, 60));
  end.Comes(DataHeader(0, 60));
  EXPECT_TRUE(end.pair->closed());
  EXPECT_EQ(end.pair->failure().code(), StatusCode::kInternal);
}

// What would be left of the element would count as received.
RING_TEST(AFrameThatCutsAnElementClosesThePair) {
  for (const FrameHeader& header : {DataHeader(0, 6), DataHeader(2, 8)}) {
    for (const bool early : {false, true}) {
      LooseEnd end(kMaxEarlyBytes);
      std::string sum(16, '\0');
      ReceiveOperation receive = Into(&sum);
      receive.element_nbytes = 4;
      receive.combine = [](void* out, const void*, const void* b,
                           size_t count) { std::memcpy(out, b, 4 * count); };
      if (!early) end.pair->Receive(kKey, 0, &receive);
      end.Comes(header);
      if (early) end.pair->Receive(kKey, 0, &receive);
      EXPECT_TRUE(end.pair->closed()) << header.offset << " " << early;
      EXPECT_EQ(sum, std::string(16, '\0')) << header.offset << " " << early;
    }
  }
}

// A peer that leaves closes all streams; the first may be seen to end while
// another still carries the last message.
RING_TEST(AStreamThatEndsDoesNotSilenceTheOthers) {
  const auto link = Link::Memory(2);
  const std::string data = Pattern(400000, 2);
  std::string got(data.size(), '\0');
  SendOperation send;
  ReceiveOperation receive = Into(&got);
  link->second().Receive(kKey, 0, &receive);
  link->first().Send(kKey, 0, data.data(), data.size(), &send);
  ASSERT_TRUE(send.done());
  link->first().CloseForWriting();
  link->to_second(1).held = true;
  while (link->second().Pump()) {
  }
  EXPECT_TRUE(link->second().ending());
  EXPECT_FALSE(link->second().closed());
  EXPECT_FALSE(receive.done());
  link->to_second(1).held = false;
  while (link->second().Pump()) {
  }
  EXPECT_TRUE(receive.done());
  EXPECT_TRUE(got == data);
  EXPECT_TRUE(link->second().closed());
}

// Its last message came in several frames, each of which waits by itself.
RING_TEST(AReceiveMayBePostedWhenThePeerHasLeft) {
  const auto link = Link::Memory(2);
  const std::string data = Pattern(400000, 2);
  SendOperation send;
  link->first().Send(kKey, 0, data.data(), data.size(), &send);
  link->first().CloseForWriting();
  while (link->second().Pump()) {
  }
  ASSERT_TRUE(link->second().closed());
  std::string got(data.size(), '\0');
  ReceiveOperation receive = Into(&got);
  link->second().Receive(kKey, 0, &receive);
  EXPECT_TRUE(receive.done());
  EXPECT_TRUE(got == data);
}

// A peer that has gone takes nothing more, but its last words count.
RING_TEST(WhatCameIsReadThoughNothingCanBeSent) {
  const auto link = Link::Memory(1);
  link->first().SendControl(FrameType::kAbort, 1, "last words");
  link->first().CloseForWriting();
  // What the second writes goes nowhere.
  link->to_first(0).broken = true;
  link->second().SendControl(FrameType::kAnnouncement, 2, "hello");
  EXPECT_TRUE(link->second().flushed());
  while (link->second().Pump()) {
  }
  ASSERT_EQ(link->controls.size(), 1);
  EXPECT_EQ(link->controls[0].payload, "last words");
  EXPECT_TRUE(link->second().closed());
}

RING_TEST(AClosedTcpConnectionIsSeen) {
  const auto link = Link::Tcp(3);
  const std::string data = Pattern(3000000, 5);
  std::string got(data.size(), '\0');
  SendOperation send;
  ReceiveOperation receive = Into(&got);
  link->second().Receive(kKey, 0, &receive);
  link->first().Send(kKey, 0, data.data(), data.size(), &send);
  link->PumpUntil([&] { return link->first().flushed(); });
  link->first().CloseForWriting();
  link->PumpUntil([&] { return link->second().closed(); });
  EXPECT_TRUE(receive.done());
  EXPECT_TRUE(got == data);
}

}  // namespace
}  // namespace ring_keras
