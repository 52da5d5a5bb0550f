// Messages between two ranks, over shared memory and over TCP.
#include "tf_ops/transport/pair.h"

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "tests/cpp/support/test.h"
#include "tests/cpp/transport/transport_test_support.h"

namespace ring_keras {
namespace {

void Add(void* out, const void* a, const void* b, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    static_cast<uint32_t*>(out)[i] =
        static_cast<const uint32_t*>(a)[i] + static_cast<const uint32_t*>(b)[i];
  }
}

RING_TEST(LargeMessagesCrossInBothDirectionsAtOnce) {
  for (const auto& link : Link::OfEveryKind()) {
    for (size_t nbytes : {size_t{1}, size_t{8191}, size_t{8193}, kInboxBytes,
                          kInboxBytes + 1, size_t{3000001}}) {
      const std::string there = Pattern(nbytes, 1);
      const std::string back = Pattern(nbytes, 2);
      std::string got_there(nbytes, '\0');
      std::string got_back(nbytes, '\0');
      SendOperation sends[2];
      ReceiveOperation receives[2] = {Into(&got_there), Into(&got_back)};
      link->second().Receive(kKey, 0, &receives[0]);
      link->first().Receive(kKey, 0, &receives[1]);
      link->first().Send(kKey, 0, there.data(), nbytes, &sends[0]);
      link->second().Send(kKey, 0, back.data(), nbytes, &sends[1]);
      link->PumpUntil([&] {
        return sends[0].done() && sends[1].done() && receives[0].done() &&
               receives[1].done();
      });
      ASSERT_TRUE(got_there == there) << nbytes;
      ASSERT_TRUE(got_back == back) << nbytes;
    }
    link->PumpUntil([&] { return link->first().flushed(); });
  }
}

// Two pipes each way.
struct MemoryStreams {
  MemoryPipe to_first[2];
  MemoryPipe to_second[2];
  Streams First() { return Between(to_second, to_first); }
  Streams Second() { return Between(to_first, to_second); }

 private:
  static Streams Between(MemoryPipe* out, MemoryPipe* in) {
    Streams streams;
    for (int i = 0; i < 2; ++i) {
      streams.push_back(std::make_unique<MemoryStream>(&out[i], &in[i]));
    }
    return streams;
  }
};

RING_TEST(WhatIsSentBeforeThereAreStreamsWaitsForThem) {
  MemoryStreams pipes;
  int needed = 0;
  std::atomic<int> unsent{0};
  Pair first(2, [&] { ++needed; });
  first.CountUnsentIn(&unsent);
  Pair second(pipes.Second());
  std::vector<std::string> told;
  second.set_control_handler([&](FrameType, uint64_t, std::string payload) {
    told.push_back(payload);
  });
  EXPECT_FALSE(first.Pump());
  EXPECT_EQ(needed, 0);

  const std::string there = Pattern(300001, 1);
  const std::string back = Pattern(5, 2);
  std::string got_there(there.size(), '\0');
  std::string got_back(back.size(), '\0');
  SendOperation sends[2];
  ReceiveOperation receives[2] = {Into(&got_there), Into(&got_back)};
  first.SendControl(FrameType::kAnnouncement, 1, "one");
  first.QueueControl(FrameType::kAnnouncement, 1, "two");
  first.Send(kKey, 0, there.data(), there.size(), &sends[0]);
  first.Receive(kKey, 0, &receives[1]);
  EXPECT_EQ(needed, 1);
  EXPECT_EQ(unsent.load(), 2);
  EXPECT_FALSE(first.Pump() || first.connected() || first.flushed());

  first.Connect(pipes.First());
  second.Receive(kKey, 0, &receives[0]);
  second.Send(kKey, 0, back.data(), back.size(), &sends[1]);
  for (int turn = 0; turn < 20; ++turn) {
    first.Pump();
    second.Pump();
  }
  EXPECT_TRUE(got_there == there && got_back == back);
  EXPECT_TRUE(told == std::vector<std::string>({"one", "two"}));
  EXPECT_EQ(unsent.load(), 0);
  EXPECT_EQ(needed, 1);
}

RING_TEST(StreamsThatCannotBeMadeAreAConnectionThatBroke) {
  int needed = 0;
  Pair pair(1, [&] { ++needed; });
  pair.SendControl(FrameType::kAnnouncement, 1, "lost");
  pair.FailToConnect(Status(StatusCode::kDeadlineExceeded, "no answer"),
                     {"here", "there"});
  EXPECT_TRUE(pair.ending() && pair.closed() && pair.failed_by_network());
  EXPECT_TRUE(pair.flushed());
  EXPECT_EQ(pair.addresses().second, "there");
  // Nobody is asked to make them for a peer that has ended.
  Pair left(1, [&] { ++needed; });
  left.StopSending();
  left.SendControl(FrameType::kAnnouncement, 1, "nobody listens");
  EXPECT_EQ(needed, 1);
  EXPECT_TRUE(left.flushed());
}

RING_TEST(DataThatComeBeforeTheReceiveWait) {
  for (const auto& link : Link::OfEveryKind()) {
    const std::string early = Pattern(500000, 3);
    SendOperation send;
    link->first().Send(kKey, 5, early.data(), early.size(), &send);
    // Goes the same way behind it: when it is there, the message is under way
    // or there, and has not been in its way.
    link->first().SendControl(FrameType::kAnnouncement, 1, "behind");
    link->PumpUntil([&] { return send.done() && !link->controls.empty(); });
    std::string got(early.size(), '\0');
    ReceiveOperation receive = Into(&got);
    link->second().Receive(kKey, 5, &receive);
    link->PumpUntil([&] { return receive.done(); });
    EXPECT_TRUE(got == early);
  }
}

// Posted when half of it has come.
RING_TEST(AReceiveMayBePostedInTheMiddle) {
  const auto link = Link::Shared();
  const std::string data = Pattern(300000, 4);
  SendOperation send;
  link->first().Send(kKey, 0, data.data(), data.size(), &send);
  for (int i = 0; i < 3; ++i) {
    link->first().Pump();
    link->second().Pump();
  }
  std::string got(data.size(), '\0');
  ReceiveOperation receive = Into(&got);
  link->second().Receive(kKey, 0, &receive);
  link->PumpUntil([&] { return receive.done(); });
  EXPECT_TRUE(got == data);
}

RING_TEST(ReceivesMayBePostedInAnyOrder) {
  constexpr uint32_t kCount = 20;
  for (const auto& link : Link::OfEveryKind()) {
    std::vector<std::string> data(kCount);
    std::vector<std::string> got(kCount);
    std::vector<SendOperation> sends(kCount);
    std::vector<ReceiveOperation> receives(kCount);
    for (uint32_t tag = 0; tag < kCount; ++tag) {
      data[tag] = Pattern(1 + tag * 20011, static_cast<int>(tag));
      got[tag].resize(data[tag].size());
      receives[tag] = Into(&got[tag]);
      link->first().Send(kKey, tag, data[tag].data(), data[tag].size(),
                         &sends[tag]);
    }
    for (uint32_t tag = kCount; tag-- > 0;) {
      link->second().Receive(kKey, tag, &receives[tag]);
      link->PumpUntil([&] { return receives[tag].done(); });
      ASSERT_TRUE(got[tag] == data[tag]) << tag;
    }
  }
}

// Stretches of every odd length, so that elements and buffers are cut anywhere.
RING_TEST(CombiningSurvivesEveryCut) {
  std::vector<size_t> cuts = {4095, 8193, 65535, 65537, SIZE_MAX};
  for (size_t cut = 1; cut < 100; cut += 2) cuts.push_back(cut);
  for (size_t cut : cuts) {
    for (bool early : {false, true}) {
      const auto link = Link::Memory(1);
      link->to_second(0).chunk_nbytes = cut;
      // Two scratch buffers and a bit, unless cut too fine to be quick.
      const size_t count = cut < 9 ? 3000 : 33001;
      std::vector<uint32_t> data(count), target(count);
      for (size_t i = 0; i < count; ++i) {
        data[i] = static_cast<uint32_t>(i * 2654435761u);
        target[i] = static_cast<uint32_t>(i);
      }
      ReceiveOperation receive;
      receive.target = reinterpret_cast<char*>(target.data());
      receive.nbytes = count * sizeof(uint32_t);
      receive.combine = Add;
      receive.element_nbytes = sizeof(uint32_t);
      SendOperation send;
      if (!early) link->second().Receive(kKey, 0, &receive);
      link->first().Send(kKey, 0, data.data(), receive.nbytes, &send);
      link->PumpUntil([&] { return send.done(); });
      if (early) {
        while (link->second().Pump()) {
        }
        link->second().Receive(kKey, 0, &receive);
      }
      link->PumpUntil([&] { return receive.done(); });
      for (size_t i = 0; i < count; ++i) {
        ASSERT_EQ(target[i], static_cast<uint32_t>(i + i * 2654435761u))
            << "cut every " << cut << " bytes, at " << i;
      }
    }
  }
}

RING_TEST(CombiningWorksOverSeveralStreams) {
  for (const auto& link : Link::OfEveryKind()) {
    constexpr size_t kCount = 400003;
    std::vector<uint32_t> data(kCount, 5), target(kCount, 2);
    ReceiveOperation receive;
    receive.target = reinterpret_cast<char*>(target.data());
    receive.nbytes = kCount * sizeof(uint32_t);
    receive.combine = Add;
    receive.element_nbytes = sizeof(uint32_t);
    SendOperation send;
    link->second().Receive(kKey, 0, &receive);
    link->first().Send(kKey, 0, data.data(), receive.nbytes, &send);
    link->PumpUntil([&] { return receive.done(); });
    EXPECT_TRUE(target == std::vector<uint32_t>(kCount, 7));
  }
}

RING_TEST(EmptyMessagesNeedNoBytes) {
  const auto link = Link::Memory(1);
  SendOperation send;
  ReceiveOperation receive;
  link->first().Send(kKey, 0, nullptr, 0, &send);
  link->second().Receive(kKey, 0, &receive);
  EXPECT_TRUE(send.done() && receive.done());
  EXPECT_TRUE(link->to_second(0).bytes.empty());
}

RING_TEST(ControlFramesComeInOrder) {
  for (const auto& link : Link::OfEveryKind()) {
    link->first().SendControl(FrameType::kAnnouncement, 1, "");
    link->first().SendControl(FrameType::kAbort, 2, Pattern(100000, 0));
    link->first().SendControl(FrameType::kAnnouncement, 3,
                              std::string(kMaxControlBytes, 'x'));
    link->PumpUntil([&] { return link->controls.size() == 3; });
    ASSERT_EQ(link->controls.size(), 3);
    EXPECT_TRUE(link->controls[0].payload.empty());
    EXPECT_TRUE(link->controls[1].type == FrameType::kAbort);
    EXPECT_TRUE(link->controls[1].payload == Pattern(100000, 0));
    EXPECT_EQ(link->controls[2].key, 3);
    EXPECT_EQ(link->controls[2].payload.size(), kMaxControlBytes);
  }
}

}  // namespace
}  // namespace ring_keras
