// Names without end: what is not used again is forgotten, by each rank when it
// likes, and the uses of a name meet as if it were not.
#include <malloc.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <new>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "tests/cpp/support/run_ranks.h"
#include "tests/cpp/support/test.h"
#include "tf_ops/matching/name_table.h"
#include "tf_ops/runtime/engine.h"

namespace {

// Blocks of memory that hold a name of this test's, in whatever thread.
constexpr size_t kNameLength = 3000;
std::atomic<int> live_names{0};

bool HoldsName(void* memory) {
  const size_t nbytes = malloc_usable_size(memory);
  return nbytes >= kNameLength && nbytes < kNameLength + 100;
}

void Release(void* memory) {
  if (memory != nullptr && HoldsName(memory)) --live_names;
  std::free(memory);
}

}  // namespace

void* operator new(size_t nbytes) {
  void* memory = std::malloc(nbytes > 0 ? nbytes : 1);
  if (memory == nullptr) throw std::bad_alloc();
  if (HoldsName(memory)) ++live_names;
  return memory;
}
void operator delete(void* memory) noexcept { Release(memory); }
void operator delete(void* memory, size_t) noexcept { Release(memory); }

namespace ring_keras {
namespace {

using testing::Rank;
using testing::RankOptions;
using testing::RunRanks;

Request Sum(std::string name, float* value) {
  Request request;
  request.kind = CollectiveKind::kAllreduce;
  request.name = std::move(name);
  request.dtype = DataType::kFloat32;
  request.inputs = {{value, {1}}};
  request.outputs = {value};
  return request;
}

std::string LongName(int number) {
  std::string name = StrCat("loss of step ", number, " ");
  name.resize(kNameLength, '.');
  return name;
}

RING_TEST(NamesThatAreUsedOnceAreForgotten) {
  for (const StepRole role : {StepRole::kNone, StepRole::kBegins}) {
    for (const RankOptions& setup :
         {RankOptions{1, "auto"}, RankOptions{2, "auto"}}) {
      constexpr int kUses = 5 * static_cast<int>(NameTable::kNewNames);
      RunRanks(setup, [&](Rank& self) {
        for (int use = 0; use < kUses; ++use) {
          float value = 1 + use;
          Request request = Sum(LongName(use), &value);
          request.step_role = role;
          ASSERT_OK(self.engine->Run(std::move(request)));
          ASSERT_EQ(value, (1.0f + use) * self.size);
        }
        // Those of two thresholds on each rank, and what is under way.
        EXPECT_LT(live_names.load(),
                  self.size * (2 * static_cast<int>(NameTable::kNewNames) + 50))
            << self.size << " ranks";
      });
    }
  }
}

// Between hosts a channel keeps nothing that is bounded otherwise.
RING_TEST(NamesWithChannelsAreForgottenBetweenHosts) {
  constexpr int kNames = 4 * static_cast<int>(NameTable::kNewNames);
  RunRanks({2, "tcp"}, [](Rank& self) {
    for (int name = 0; name < kNames; ++name) {
      for (int use = 0; use < 3; ++use) {
        float value = 1 + name;
        ASSERT_OK(self.engine->Run(Sum(LongName(name), &value)));
        ASSERT_EQ(value, (1.0f + name) * self.size);
      }
    }
    EXPECT_LT(live_names.load(),
              self.size * (2 * static_cast<int>(NameTable::kNewNames) + 50));
  });
}

// Uses `names` once, several at a time, in an order of this rank's own.
void UseAll(Rank& self, const std::vector<int>& names, int use,
            std::mt19937& order) {
  constexpr size_t kTogether = 64;
  std::vector<float> values(names.size());
  const auto sent = [use](int name) { return name * 8.0f + use; };
  for (size_t begin = 0; begin < names.size(); begin += kTogether) {
    const size_t end = std::min(begin + kTogether, names.size());
    std::vector<size_t> some(end - begin);
    std::iota(some.begin(), some.end(), begin);
    std::shuffle(some.begin(), some.end(), order);
    std::atomic<size_t> left{some.size()};
    for (size_t i : some) {
      values[i] = sent(names[i]);
      self.engine->Submit(Sum(StrCat("name ", names[i]), &values[i]),
                          [&left](const Status& status) {
                            EXPECT_OK(status);
                            --left;
                          });
    }
    const bool all_ended = testing::WaitFor([&] { return left == 0; });
    if (!all_ended) std::abort();  // Callbacks would write to a dead stack.
  }
  for (size_t i = 0; i < names.size(); ++i) {
    ASSERT_EQ(values[i], sent(names[i]) * self.size)
        << "name " << names[i] << " in use " << use << " on rank " << self.rank;
  }
}

// Each rank uses names in another order, so it is not the same ones that ranks
// have used lately when they forget the others.
RING_TEST(UsesMeetThoughRanksForgetAtDifferentTimes) {
  for (const RankOptions& setup :
       {RankOptions{2, "auto"}, RankOptions{3, "tcp"}}) {
    RunRanks(setup, [](Rank& self) {
      std::mt19937 order(self.rank);
      constexpr int kNew = static_cast<int>(NameTable::kNewNames);
      // Around the names at which a rank forgets others.
      std::vector<int> some;
      for (int threshold : {1, 2}) {
        for (int name = -70; name < 70; ++name) {
          some.push_back(threshold * kNew + name);
        }
      }
      std::vector<int> all(3 * kNew);
      std::iota(all.begin(), all.end(), 0);
      UseAll(self, all, 0, order);
      for (int use = 1; use < 6; ++use) {
        std::shuffle(some.begin(), some.end(), std::mt19937(use));
        UseAll(self, some, use, order);
      }
    });
  }
}

RING_TEST(NamesThatAreStillUsedAreRemembered) {
  NameTable names;
  const auto fill = [&](int from) {
    for (size_t i = 0; i < NameTable::kNewNames; ++i) {
      NameUse& use = names.Of(StrCat("made up ", from + i), i % 2 == 0);
      use.gone = ++use.next_sequence;
    }
    // Every other step.
    names.Of("used", false).next_sequence = names.Of("used", false).gone = 7;
    names.ForgetUnused();
  };
  NameUse& pending = names.Of("pending", true);
  pending.next_sequence = 3;
  pending.gone = 2;
  for (int i = 0; i < 4; ++i) {
    fill(i * static_cast<int>(NameTable::kNewNames));
  }
  EXPECT_EQ(names.Of("used", false).next_sequence, 7u);
  EXPECT_EQ(names.Of("pending", true).next_sequence, 3u);
  EXPECT_LT(names.size(), 2 * NameTable::kNewNames + 10);
  pending.gone = 3;
  fill(100000);
  fill(200000);
  EXPECT_EQ(names.Of("pending", true).next_sequence, 0u);
}

}  // namespace
}  // namespace ring_keras
