// Posts that travel, between ranks of one thread, in any order.
#include "tf_ops/collectives/message_posts.h"

#include <algorithm>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "tests/cpp/collectives/members.h"
#include "tests/cpp/support/test.h"

namespace ring_keras {
namespace {

constexpr uint64_t kSignature = 12345;
constexpr int kMaxTurns = 100000;

// Ranks, each of which may have a channel.
struct Ranks {
  explicit Ranks(int size) : members(Connect(size)), posts(size), errors(size) {
    for (int rank = 0; rank < size; ++rank) {
      for (int peer = 0; peer < size; ++peer) {
        if (peer == rank) continue;
        Communicator& communicator = *members[rank].communicator;
        communicator.pair(peer).set_control_handler(
            [this, rank, peer, &communicator](FrameType type, uint64_t key,
                                              std::string bytes) {
              ASSERT_TRUE(type == FrameType::kPost);
              auto post = DecodePost(std::move(bytes));
              ASSERT_OK(post.status());
              const Status taken =
                  communicator.posts().Take(key, peer, std::move(post.value()));
              if (!taken.ok()) errors[rank] = taken;
            });
      }
    }
  }

  int size() const { return static_cast<int>(members.size()); }
  void Open(int rank, uint64_t key = kKey) {
    posts[rank] =
        std::make_unique<MessagePosts>(*members[rank].communicator, key);
  }
  void OpenAll(uint64_t key = kKey) {
    for (int rank = 0; rank < size(); ++rank) Open(rank, key);
  }
  void Enter(int rank, uint64_t signature = kSignature, double weight = 1.0) {
    Participant own;
    own.weight = weight;
    const std::string payload = PayloadOf(rank);
    own.payload = payload;
    posts[rank]->Enter(signature, own);
  }
  std::string PayloadOf(int rank) const {
    return std::string(payload_nbytes, static_cast<char>('a' + rank));
  }
  // Moves messages until all have heard from all.
  void Settle() {
    for (int turn = 0; turn < kMaxTurns; ++turn) {
      for (Member& member : members) member.mesh->Pump();
      if (std::all_of(posts.begin(), posts.end(), [](const auto& each) {
            return each == nullptr || each->All();
          })) {
        return;
      }
    }
    ASSERT_TRUE(false) << "some have not heard from all";
  }
  void ExpectAgreed(bool agreed) const {
    for (const auto& each : posts) EXPECT_EQ(each->Agreed(), agreed);
  }

  size_t payload_nbytes = 3;
  std::vector<Member> members;
  std::vector<std::unique_ptr<MessagePosts>> posts;
  std::vector<Status> errors;
};

RING_TEST(AllHearTheSameFromAllInAnyOrder) {
  std::mt19937 chance(7);
  for (int size = 1; size <= 17; ++size) {
    Ranks ranks(size);
    ranks.OpenAll();
    uint64_t last_key = 0;
    for (size_t payload_nbytes : {3, 0, 1000}) {
      ranks.payload_nbytes = payload_nbytes;
      std::vector<int> order(size);
      std::iota(order.begin(), order.end(), 0);
      std::shuffle(order.begin(), order.end(), chance);
      for (int rank : order) {
        ranks.Enter(rank);
        if (chance() % 2 == 0) ranks.members[rank].mesh->Pump();
      }
      ranks.Settle();
      ranks.ExpectAgreed(true);
      for (int rank = 0; rank < size; ++rank) {
        Participants all(size);
        ranks.posts[rank]->Describe(&all);
        EXPECT_TRUE(all.key != last_key);
        for (int other = 0; other < size; ++other) {
          EXPECT_TRUE(all[other].payload == ranks.PayloadOf(other))
              << "of " << other << " on " << rank << " of " << size;
        }
        if (rank == size - 1) last_key = all.key;
      }
    }
  }
}

RING_TEST(OneThatDiffersIsSeenByAll) {
  for (int size = 2; size <= 9; ++size) {
    for (int odd = 0; odd < size; ++odd) {
      Ranks ranks(size);
      ranks.OpenAll();
      const auto use = [&](uint64_t signature, double weight) {
        for (int rank = 0; rank < size; ++rank) {
          // Who is early hears of it, too.
          const int entering = (rank + odd) % size;
          if (entering == odd) {
            ranks.Enter(odd, signature, weight);
          } else {
            ranks.Enter(entering);
          }
        }
        ranks.Settle();
      };
      use(kSignature + 2, 1.0);
      ranks.ExpectAgreed(false);
      use(kSignature, 0.5);
      ranks.ExpectAgreed(false);
      use(kSignature, 1.0);
      ranks.ExpectAgreed(true);
      use(Posts::kCannot, 1.0);
      ranks.ExpectAgreed(false);
    }
  }
}

// They say so at once, without having listened, and go, some at once and some
// when part of the others' words has come; the rest comes to nobody, and is
// waited for no longer than it takes.
RING_TEST(SomeThatCannotTakePartNeedNotStay) {
  std::mt19937 chance(11);
  for (int turn = 0; turn < 200; ++turn) {
    const int size = 2 + static_cast<int>(chance() % 8);
    Ranks ranks(size);
    ranks.OpenAll();
    for (int rank = 0; rank < size; ++rank) ranks.Enter(rank);
    ranks.Settle();
    const auto pump_some = [&] {
      for (Member& member : ranks.members) {
        if (chance() % 2 == 0) member.mesh->Pump();
      }
    };
    std::vector<int> order(size);
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), chance);
    const int leaving = 1 + static_cast<int>(chance() % size);
    for (int i = 0; i < size; ++i) {
      ranks.Enter(order[i], i < leaving ? Posts::kCannot : kSignature);
      pump_some();
      if (i < leaving && chance() % 2 == 0) ranks.posts[order[i]].reset();
    }
    ranks.Settle();
    for (auto& posts : ranks.posts) {
      EXPECT_TRUE(posts == nullptr || !posts->Agreed());
      posts.reset();
    }
    for (int i = 0; i < 100; ++i) {
      for (Member& member : ranks.members) member.mesh->Pump();
    }
    for (int rank = 0; rank < size; ++rank) {
      EXPECT_OK(ranks.errors[rank]);
      EXPECT_EQ(ranks.members[rank].communicator->posts().channel_count(), 0u);
    }
  }
}

// A peer may have a channel, and be in its next use, before this rank is.
RING_TEST(WhatComesEarlyIsKept) {
  for (int size = 2; size <= 9; ++size) {
    Ranks ranks(size);
    for (int rank = size - 1; rank >= 0; --rank) {
      ranks.Open(rank);
      ranks.Enter(rank);
      for (int turn = 0; turn < 100; ++turn) {
        for (Member& member : ranks.members) member.mesh->Pump();
      }
    }
    ranks.Settle();
    ranks.ExpectAgreed(true);
    // The first is in the next use, and the last may not have heard yet that
    // this one is over for the first.
    ranks.Enter(0);
    const int before = size - 1;
    for (int turn = 0; turn < 100; ++turn) ranks.members[before].mesh->Pump();
    EXPECT_TRUE(ranks.posts[before]->IsAhead(0));
    EXPECT_TRUE(!ranks.posts[before]->PeerCannot());
    for (int rank = 1; rank < size; ++rank) ranks.Enter(rank);
    ranks.Settle();
    ranks.ExpectAgreed(true);
  }
}

RING_TEST(WhatNoPeerCanMeanIsAnError) {
  Ranks ranks(4);
  ranks.OpenAll();
  PostHeader header;
  const auto say = [&](int from, int to) {
    ranks.members[from].communicator->pair(to).SendControl(
        FrameType::kPost, kKey, EncodePost(header, {}));
    for (int turn = 0; turn < 100; ++turn) ranks.members[to].mesh->Pump();
  };
  header.use = 2;  // This rank has not entered the first.
  say(1, 0);
  EXPECT_EQ(ranks.errors[0].code(), StatusCode::kInternal);
  header.use = 1;
  say(0, 3);
  EXPECT_OK(ranks.errors[3]);
  say(0, 3);  // Once more.
  EXPECT_EQ(ranks.errors[3].code(), StatusCode::kInternal);
  say(0, 1);  // Rank 1 hears from 2 and 3 only.
  EXPECT_EQ(ranks.errors[1].code(), StatusCode::kInternal);
  header.last_rank = 4;
  say(2, 1);
  EXPECT_TRUE(ranks.errors[1].message().find("place 4 of 4") !=
              std::string::npos);
  header.last_rank = 0;
  header.since_last_ns = -1;
  say(3, 2);
  EXPECT_EQ(ranks.errors[2].code(), StatusCode::kInternal);
}

RING_TEST(AShortPayloadIsAnError) {
  Ranks ranks(2);
  ranks.OpenAll();
  ranks.Enter(0);
  ranks.payload_nbytes = 2;
  ranks.Enter(1);
  for (int turn = 0; turn < 100; ++turn) {
    for (Member& member : ranks.members) member.mesh->Pump();
  }
  EXPECT_EQ(ranks.errors[0].code(), StatusCode::kInternal);
}

}  // namespace
}  // namespace ring_keras
