#include "tf_ops/collectives/streaming_choice.h"

#include <cstring>
#include <functional>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "tests/cpp/collectives/members.h"
#include "tests/cpp/support/test.h"
#include "tf_ops/collectives/collective.h"

namespace ring_keras {
namespace {

constexpr size_t kSlot = StreamingChoice::kLeastBytes;

// Slots that take so long through the caches, and past them.
struct Cores {
  Ticks cached;
  Ticks streamed;

  // How many of the slots were streamed.
  int Write(StreamingChoice& choice, int slots) const {
    int count = 0;
    for (int i = 0; i < slots; ++i) {
      const StreamingChoice::Way way = choice.Next();
      count += way.streams;
      if (!way.is_timed) continue;
      choice.Note(way.streams, kSlot, way.streams ? streamed : cached);
    }
    return count;
  }
};

constexpr Cores kOneCache = {1000, 1000};
constexpr Cores kTwoCaches = {9000, 500};

void MakeStream(StreamingChoice& choice) {
  kTwoCaches.Write(choice, 100);
  ASSERT_TRUE(choice.streams());
}

RING_TEST(CoresThatShareACacheStreamNowAndThen) {
  StreamingChoice choice;
  const int streamed = kOneCache.Write(choice, 10'000);
  EXPECT_TRUE(!choice.streams());
  EXPECT_TRUE(streamed > 10 && streamed < 100);
}

RING_TEST(CoresThatShareNoneWriteThroughTheirsNowAndThen) {
  StreamingChoice choice;
  const int streamed = kTwoCaches.Write(choice, 100'000);
  EXPECT_TRUE(choice.streams());
  EXPECT_TRUE(streamed > 98'000 && streamed < 99'900);
}

RING_TEST(TheChoiceFollowsCoresThatAreMoved) {
  StreamingChoice choice;
  for (int move = 0; move < 5; ++move) {
    kTwoCaches.Write(choice, 100);
    EXPECT_TRUE(choice.streams());
    kOneCache.Write(choice, 600);
    EXPECT_TRUE(!choice.streams());
  }
}

// The longer one way was better, the less often is the other tried.
RING_TEST(WhatWasLongBetterIsLeftLater) {
  StreamingChoice choice;
  kTwoCaches.Write(choice, 100'000);
  kOneCache.Write(choice, 600);
  EXPECT_TRUE(choice.streams());
  kOneCache.Write(choice, 8'000);
  EXPECT_TRUE(!choice.streams());
  // That is forgotten then.
  kTwoCaches.Write(choice, 100);
  EXPECT_TRUE(choice.streams());
  kOneCache.Write(choice, 600);
  EXPECT_TRUE(!choice.streams());
}

// Slots that were streamed are fetched from memory before the caches have them.
RING_TEST(TheFirstSlotsOfATrialDoNotCount) {
  StreamingChoice choice;
  MakeStream(choice);
  int in_a_row = 0;
  for (int i = 0; i < 600; ++i) {
    const StreamingChoice::Way way = choice.Next();
    in_a_row = way.streams ? 0 : in_a_row + 1;
    const Ticks cached = in_a_row <= 16 ? 3000 : 1000;
    if (way.is_timed) {
      choice.Note(way.streams, kSlot, way.streams ? 1000 : cached);
    }
  }
  EXPECT_TRUE(!choice.streams());
}

// The rank may have lost its core for a moment.
RING_TEST(AFewSlowSlotsMoveNobody) {
  StreamingChoice choice;
  kOneCache.Write(choice, 1'000);
  for (int i = 0; i < 100; ++i) {
    kTwoCaches.Write(choice, 8);
    kOneCache.Write(choice, 8);
    EXPECT_TRUE(!choice.streams());
  }
}

RING_TEST(ItCopiesEitherWay) {
  std::vector<char> from(5 * kSlot);
  std::iota(from.begin(), from.end(), 0);
  for (bool streams : {false, true}) {
    for (size_t nbytes : {size_t{0}, size_t{1}, size_t{511}, size_t{512},
                          size_t{5000}, kSlot, 3 * kSlot + 7}) {
      for (size_t at : {0, 1, 64}) {
        StreamingChoice choice;
        if (streams) MakeStream(choice);
        std::vector<char> to(from.size() + 64, 'x');
        std::vector<char> expected = to;
        std::memcpy(expected.data() + at, from.data() + 3 * at, nbytes);
        ShowingCopy copy(choice, 4 * kSlot);
        copy(to.data() + at, from.data() + 3 * at, nbytes);
        ASSERT_TRUE(to == expected) << nbytes << " bytes at " << at;
      }
    }
  }
}

// Writes many slots of 8 pieces each. How many of the next 1000 would be
// streamed.
int Show(StreamingChoice& choice, size_t piece_nbytes, size_t room) {
  const std::vector<char> from(piece_nbytes);
  std::vector<char> to(piece_nbytes);
  for (int i = 0; i < 1'000; ++i) {
    ShowingCopy copy(choice, room);
    for (int piece = 0; piece < 8; ++piece) {
      copy(to.data(), from.data(), piece_nbytes);
    }
  }
  int count = 0;
  for (int i = 0; i < 1'000; ++i) count += choice.Next().streams;
  return count;
}

// Until it is known what streaming takes, that is tried more often.
RING_TEST(CopiesOfWholeSlotsAreTimed) {
  StreamingChoice large;
  EXPECT_TRUE(Show(large, kSlot / 4, 2 * kSlot) < 20 || large.streams());
  StreamingChoice mostly_empty;
  EXPECT_TRUE(Show(mostly_empty, kSlot / 16, 2 * kSlot) > 50);
}

RING_TEST(SmallSlotsAreWrittenThroughTheCaches) {
  StreamingChoice choice;
  MakeStream(choice);
  for (int i = 0; i < 100'000; ++i) ShowingCopy(choice, kSlot - 1);
  kOneCache.Write(choice, 600);  // They did not count.
  EXPECT_TRUE(!choice.streams());
}

// Ranks of one host, each with a tensor of `rows` numbers, not all in whole
// lines; all of them stream.
class StreamingRanks {
 public:
  StreamingRanks(int size, CollectiveKind kind, int64_t rows)
      : members_(ConnectByMemory(size)), ranks_(size) {
    Participants described(size);
    std::vector<uint64_t> windows;
    for (int rank = 0; rank < size; ++rank) {
      Rank& self = ranks_[rank];
      MakeStream(communicator(rank).packing());
      for (int64_t i = 0; i < rows; ++i) {
        self.input.push_back(static_cast<float>((rank + 1) * (i % 97)));
      }
      self.arguments.kind = kind;
      self.arguments.dtype = DataType::kFloat32;
      self.arguments.inputs = {{self.input.data(), {rows}}};
      self.arguments.allocate_output = [&self](const Shape& shape) {
        self.output.resize(ElementCount(shape));
        return StatusOr<void*>(self.output.data());
      };
      if (kind == CollectiveKind::kAllreduce ||
          kind == CollectiveKind::kBroadcast) {
        self.output.resize(rows);
        self.arguments.outputs = {self.output.data()};
      }
      self.collective = MakeCollective(self.arguments, communicator(rank));
      WindowUse use;
      use.slot_nbytes = *self.collective->slot_nbytes();
      use.window = members_[rank]
                       .mesh->windows()
                       .Allocate(WindowBytes(use.slot_nbytes))
                       .value();
      self.collective->Prepare(use);
      self.collective->Describe(&described[rank]);
      described[rank].rows = rows;
      windows.push_back(members_[rank].mesh->windows().OffsetOf(use.window));
    }
    for (int rank = 0; rank < size; ++rank) {
      ranks_[rank].participants = described;
      for (int peer = 0; peer < size; ++peer) {
        ranks_[rank].participants[peer].window =
            WindowAt(communicator(rank).segment(peer), windows[peer]);
      }
      ranks_[rank].task.emplace(
          ranks_[rank].collective->Run(ranks_[rank].participants));
      ranks_[rank].task->Start();
    }
    // Each turn of all takes at least one of them further.
    for (int turn = 0; turn < 1000; ++turn) {
      for (Member& member : members_) member.scheduler.RunReady();
    }
  }

  // Of the rank, whose collective has ended well.
  const std::vector<float>& output(int rank) {
    EXPECT_TRUE(ranks_[rank].task->done());
    EXPECT_OK(ranks_[rank].task->result());
    return ranks_[rank].output;
  }

 private:
  struct Rank {
    std::vector<float> input;
    std::vector<float> output;
    CollectiveArguments arguments;
    std::unique_ptr<Collective> collective;
    Participants participants;
    std::optional<Task> task;
  };
  Communicator& communicator(int rank) { return *members_[rank].communicator; }

  std::vector<Member> members_;
  std::vector<Rank> ranks_;
};

// What all ranks together have at `i`: of `size`, with `rows` each.
using NumberOfAll = std::function<float(int size, int64_t rows, size_t i)>;

void ExpectOfAll(CollectiveKind kind, const NumberOfAll& expected) {
  for (int size : {2, 3}) {
    for (int64_t rows : {3, 5'000, 400'001}) {
      StreamingRanks ranks(size, kind, rows);
      for (int rank = 0; rank < size; ++rank) {
        const std::vector<float>& output = ranks.output(rank);
        for (size_t i = 0; i < output.size(); ++i) {
          ASSERT_EQ(output[i], expected(size, rows, i))
              << "rank " << rank << " of " << size << " at " << i;
        }
      }
    }
  }
}

RING_TEST(AnAllreduceOfRanksThatStreamIsRight) {
  ExpectOfAll(CollectiveKind::kAllreduce, [](int size, int64_t, size_t i) {
    return static_cast<float>(size * (size + 1) / 2 * (i % 97));
  });
}

RING_TEST(AnAllgatherOfRanksThatStreamIsRight) {
  ExpectOfAll(CollectiveKind::kAllgather, [](int, int64_t rows, size_t i) {
    return static_cast<float>((i / rows + 1) * (i % rows % 97));
  });
}

// Rank r gets the r-th part of all ranks' rows; these are equal parts of them.
RING_TEST(AnAlltoallOfRanksThatStreamIsRight) {
  for (int size : {2, 3}) {
    for (int64_t part : {2, 5'000, 400'001}) {
      StreamingRanks ranks(size, CollectiveKind::kAlltoall, size * part);
      for (int rank = 0; rank < size; ++rank) {
        const std::vector<float>& output = ranks.output(rank);
        ASSERT_EQ(static_cast<int64_t>(output.size()), size * part);
        for (int64_t i = 0; i < size * part; ++i) {
          const int64_t row = rank * part + i % part;
          ASSERT_EQ(output[i], static_cast<float>((i / part + 1) * (row % 97)))
              << "rank " << rank << " of " << size << " at " << i;
        }
      }
    }
  }
}

RING_TEST(AReduceScatterOfRanksThatStreamIsRight) {
  for (int size : {2, 3}) {
    for (int64_t part : {2, 5'000, 400'001}) {
      StreamingRanks ranks(size, CollectiveKind::kReduceScatter, size * part);
      for (int rank = 0; rank < size; ++rank) {
        const std::vector<float>& output = ranks.output(rank);
        ASSERT_EQ(static_cast<int64_t>(output.size()), part);
        for (int64_t i = 0; i < part; ++i) {
          const int64_t row = rank * part + i;
          ASSERT_EQ(output[i],
                    static_cast<float>(size * (size + 1) / 2 * (row % 97)))
              << "rank " << rank << " of " << size << " at " << i;
        }
      }
    }
  }
}

RING_TEST(ABroadcastOfRanksThatStreamIsRight) {
  ExpectOfAll(CollectiveKind::kBroadcast, [](int, int64_t, size_t i) {
    return static_cast<float>(i % 97);
  });
}

}  // namespace
}  // namespace ring_keras
