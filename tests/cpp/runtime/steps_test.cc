// Collectives in steps: a rank that skipped or repeated part of one is found,
// and then all ranks go on together.
#include <atomic>
#include <chrono>
#include <functional>
#include <future>
#include <mutex>
#include <string>
#include <vector>

#include "tests/cpp/support/run_ranks.h"
#include "tests/cpp/support/test.h"
#include "tf_ops/runtime/engine.h"

namespace ring_keras {
namespace {

using testing::Rank;
using testing::RankOptions;
using testing::RunRanks;

constexpr int kBuckets = 3;

std::vector<RankOptions> SetupsOfTraining() {
  std::vector<RankOptions> setups;
  for (int size : {2, 3}) {
    for (const char* transport : {"auto", "tcp"}) {
      setups.push_back({size, transport, 1, 20});
    }
  }
  // Two ranks on one host, one on another.
  setups.push_back({3, "auto", 2, 20});
  return setups;
}

// One rank's training: each step reduces a value per bucket.
class Training {
 public:
  explicit Training(Rank& self) : self_(self) {}

  int64_t plan = 0;

  // Starts the buckets that `starts` names; waits for all. The first error.
  // `value` is what each rank brings; the sums must be those of one step.
  Status Step(float value, const std::function<bool(int)>& starts) {
    std::vector<float> data(kBuckets, value);
    std::vector<Status> results(kBuckets);
    std::atomic<int> left{0};
    bool first = true;
    for (int bucket = 0; bucket < kBuckets; ++bucket) {
      if (!starts(bucket)) continue;
      ++left;
      Request request =
          Bucket(bucket, &data[bucket],
                 first ? StepRole::kBegins : StepRole::kContinues);
      request.plan = plan;
      self_.engine->Submit(
          std::move(request),
          [&, bucket](const Status& status) {
            results[bucket] = status;
            --left;
          },
          bucket + 1 == kBuckets ? 1e-4 : 0);
      first = false;
    }
    testing::WaitFor([&] { return left == 0; });
    ASSERT_EQ_OR_DIE(left.load(), 0);
    for (int bucket = 0; bucket < kBuckets; ++bucket) {
      if (!results[bucket].ok()) return results[bucket];
      if (starts(bucket)) {
        EXPECT_EQ(data[bucket], value * self_.size) << "bucket " << bucket;
      }
    }
    return Status::Ok();
  }
  Status Step(float value) {
    return Step(value, [](int) { return true; });
  }

  static Request Bucket(int bucket, float* data, StepRole role) {
    Request request;
    request.kind = CollectiveKind::kAllreduce;
    request.name = StrCat("gradients/bucket", bucket);
    request.dtype = DataType::kFloat32;
    request.step_role = role;
    request.inputs = {{data, {1}}};
    request.outputs = {data};
    return request;
  }

 private:
  static void ASSERT_EQ_OR_DIE(int got, int wanted) {
    if (got != wanted) std::abort();  // Callbacks would write to a dead stack.
  }
  Rank& self_;
};

// What the ranks were told, compared when all have ended.
class Told {
 public:
  explicit Told(int size) : texts_(size) {}
  void Add(int rank, const Status& status) {
    std::lock_guard<std::mutex> lock(mutex_);
    texts_[rank].push_back(status.message());
  }
  const std::vector<std::vector<std::string>>& texts() const { return texts_; }

 private:
  std::mutex mutex_;
  std::vector<std::vector<std::string>> texts_;
};

// A rank fails between two buckets, its caller catches that and goes on.
RING_TEST(ARankThatFailedInTheMiddleIsFoundAndAllGoOn) {
  for (const RankOptions& setup : SetupsOfTraining()) {
    for (int before : {0, 1, 5}) {  // Without channels, and with them.
      Told told(setup.size);
      RunRanks(setup, [&](Rank& self) {
        Training training(self);
        for (int step = 0; step < before; ++step) {
          ASSERT_OK(training.Step(1 + step));
        }
        if (self.rank == 0) {
          // Bucket 0 only.
          ASSERT_OK(training.Step(100, [](int bucket) { return bucket == 0; }));
          // This one is ahead of the others' now.
          const Status status = training.Step(200);
          EXPECT_EQ(status.code(), StatusCode::kRankMismatch);
          told.Add(self.rank, status);
        } else {
          const Status status = training.Step(100);
          EXPECT_EQ(status.code(), StatusCode::kRankMismatch);
          told.Add(self.rank, status);
        }
        for (int step = 0; step < 5; ++step) {
          const Status status = training.Step(300 + step);
          ASSERT_OK(status) << " rank " << self.rank << " after " << before;
        }
      });
      for (int rank = 0; rank < setup.size; ++rank) {
        ASSERT_EQ(told.texts()[rank].size(), 1u);
        EXPECT_EQ(told.texts()[rank][0], told.texts()[0][0]);
      }
      const std::string& text = told.texts()[0][0];
      EXPECT_TRUE(text.find(StrCat("rank 0 is in step ", before + 2)) !=
                  std::string::npos)
          << text;
      EXPECT_TRUE(text.find(StrCat("in step ", before + 1, ".")) !=
                  std::string::npos)
          << text;
      // Between hosts the posts of either may be all there first.
      EXPECT_TRUE(text.find("'gradients/bucket1'") != std::string::npos ||
                  text.find("'gradients/bucket2'") != std::string::npos)
          << text;
    }
  }
}

// A rank brings a bucket again, for which the others are in the next step.
RING_TEST(ARankThatRepeatedABucketIsFoundAndAllGoOn) {
  for (const RankOptions& setup : SetupsOfTraining()) {
    for (int before : {1, 5}) {  // Without channels, and with them.
      Told told(setup.size);
      RunRanks(setup, [&](Rank& self) {
        Training training(self);
        for (int step = 0; step < before; ++step) {
          ASSERT_OK(training.Step(1 + step));
        }
        Status status;
        if (self.rank == 0) {
          float data = 100;
          status = self.engine->Run(
              Training::Bucket(1, &data, StepRole::kContinues));
          EXPECT_EQ(data, 100.0f);
        } else {
          status = training.Step(200);
        }
        EXPECT_EQ(status.code(), StatusCode::kRankMismatch);
        told.Add(self.rank, status);
        for (int step = 0; step < 5; ++step) {
          ASSERT_OK(training.Step(300 + step))
              << " rank " << self.rank << " after " << before;
        }
      });
      for (int rank = 0; rank < setup.size; ++rank) {
        EXPECT_EQ(told.texts()[rank][0], told.texts()[0][0]);
      }
      const std::string& text = told.texts()[0][0];
      EXPECT_TRUE(text.find(StrCat(" is in step ", before + 1,
                                   ", rank 0 in step ", before, ".")) !=
                  std::string::npos)
          << text;
    }
  }
}

// A rank says that it cannot take part, and starts nothing more of that step.
RING_TEST(ARankThatCannotTakePartEndsTheStepForAll) {
  for (const RankOptions& setup : SetupsOfTraining()) {
    for (int before : {0, 5}) {
      Told told(setup.size);
      RunRanks(setup, [&](Rank& self) {
        Training training(self);
        for (int step = 0; step < before; ++step) {
          ASSERT_OK(training.Step(1 + step));
        }
        if (self.rank == 1) {
          float data = 1;
          Request request = Training::Bucket(0, &data, StepRole::kBegins);
          request.able = Status(StatusCode::kResourceExhausted, "no memory");
          const Status status = self.engine->Run(std::move(request));
          EXPECT_EQ(status.code(), StatusCode::kResourceExhausted);
        } else {
          const Status status = training.Step(100);
          EXPECT_EQ(status.code(), StatusCode::kRankMismatch);
          told.Add(self.rank, status);
        }
        for (int step = 0; step < 5; ++step) {
          ASSERT_OK(training.Step(300 + step)) << " rank " << self.rank;
        }
      });
      EXPECT_TRUE(
          told.texts()[0][0].find("rank 1 cannot take part: no memory") !=
          std::string::npos)
          << told.texts()[0][0];
    }
  }
}

// A rank fails on its way to a step, in the middle, or behind it, where the
// others ask each other about the next one; its program says so.
RING_TEST(AStepThatARankGivesUpEndsForAllAndAllGoOn) {
  enum Where { kBefore, kWithin, kBehind };
  for (const RankOptions& setup : SetupsOfTraining()) {
    for (int before : {0, 1, 5}) {  // Without channels, and with them.
      for (Where where : {kBefore, kWithin, kBehind}) {
        Told told(setup.size);
        RunRanks(setup, [&](Rank& self) {
          Training training(self);
          const auto ask = [&] {
            float data = 1;
            Request request = Training::Bucket(0, &data, StepRole::kPrecedes);
            request.name = "question";
            return self.engine->Run(std::move(request));
          };
          const auto step = [&](float value) {
            RING_KERAS_RETURN_IF_ERROR(ask());
            return training.Step(value);
          };
          for (int n = 0; n < before; ++n) ASSERT_OK(step(1 + n));
          ASSERT_OK(ask());
          if (where == kBehind) {
            ASSERT_OK(training.Step(100));
          }
          if (self.rank == 1) {
            if (where == kWithin) {
              ASSERT_OK(
                  training.Step(100, [](int bucket) { return bucket == 0; }));
            }
            self.engine->GiveUpStep(0, "[RK310] rank 1 cannot take part: no",
                                    {});
          } else {
            const Status status = where == kBehind ? ask() : training.Step(100);
            EXPECT_EQ(status.code(), StatusCode::kRankMismatch);
            told.Add(self.rank, status);
          }
          self.engine->ForgetGivenUp(0);  // As the next fit() does.
          for (int n = 0; n < 5; ++n) {
            ASSERT_OK(step(300 + n)) << " rank " << self.rank << " " << where;
          }
        });
        EXPECT_EQ(told.texts()[0][0], "rank 1 cannot take part: no");
      }
    }
  }
}

// Nobody waits for what departs in a step: a rank hears that this was given up
// where it asks about the next, whether it has departed before or since.
RING_TEST(AStepInWhichAllDepartsIsHeardOfInTheNext) {
  for (const RankOptions& setup : SetupsOfTraining()) {
    std::promise<void> told;
    std::shared_future<void> first_is_told = told.get_future().share();
    RunRanks(setup, [&](Rank& self) {
      Training training(self);
      for (int step = 0; step < 3; ++step) ASSERT_OK(training.Step(1 + step));
      if (self.rank == 1) {
        const std::string why = "[RK310] rank 1 cannot take part: no";
        self.engine->GiveUpStep(0, why, {/*steps_ahead=*/1});
      } else {
        if (self.rank == 2) {  // By then it has heard.
          ASSERT_TRUE(first_is_told.wait_for(std::chrono::seconds(20)) ==
                      std::future_status::ready);
        }
        float data = 1;
        std::promise<Status> ended;
        Request departs = Training::Bucket(0, &data, StepRole::kBegins);
        departs.departs = true;
        self.engine->Submit(
            std::move(departs),
            [&](const Status& status) { ended.set_value(status); }, 0);
        float asked = 1;
        Request asks = Training::Bucket(0, &asked, StepRole::kPrecedes);
        asks.name = "question";
        EXPECT_EQ(self.engine->Run(std::move(asks)).code(),
                  StatusCode::kRankMismatch);
        EXPECT_EQ(ended.get_future().get().code(), StatusCode::kRankMismatch);
        self.engine->ForgetGivenUp(0);  // As fit() does where it raises.
        if (self.rank == 0) told.set_value();
      }
      for (int step = 0; step < 3; ++step) {
        ASSERT_OK(training.Step(11 + step)) << " rank " << self.rank;
      }
    });
  }
}

// A rank that is not in a step when the others give up must hear of it, too.
RING_TEST(ARankBetweenTwoStepsHearsOfTheDisagreementInTheNext) {
  std::promise<void> failed;
  RunRanks({3, "auto", 1, 20}, [&](Rank& self) {
    Training training(self);
    for (int step = 0; step < 4; ++step) ASSERT_OK(training.Step(1 + step));
    if (self.rank == 2) {
      // In nothing while rank 0 announces that it cannot take part.
      ASSERT_TRUE(failed.get_future().wait_for(std::chrono::seconds(20)) ==
                  std::future_status::ready);
    }
    float data = 1;
    Request request = Training::Bucket(0, &data, StepRole::kBegins);
    if (self.rank == 0) {
      request.able = Status(StatusCode::kInvalidArgument, "no");
      EXPECT_FALSE(self.engine->Run(std::move(request)).ok());
      failed.set_value();
    } else {
      EXPECT_EQ(training.Step(7).code(), StatusCode::kRankMismatch);
    }
    for (int step = 0; step < 4; ++step) ASSERT_OK(training.Step(11 + step));
  });
}

// Buckets of two plans may be alike in all but what they mean.
RING_TEST(StepsOfDifferentPlansNeverMeet) {
  for (const RankOptions& setup : SetupsOfTraining()) {
    for (int before : {0, 5}) {  // Without channels, and with them.
      Told told(setup.size);
      RunRanks(setup, [&](Rank& self) {
        Training training(self);
        training.plan = 1;
        for (int step = 0; step < before; ++step) {
          ASSERT_OK(training.Step(1 + step));
        }
        training.plan = self.rank == 1 ? 2 : 1;
        const Status status = training.Step(100);
        EXPECT_EQ(status.code(), StatusCode::kRankMismatch);
        told.Add(self.rank, status);
        training.plan = 2;
        for (int step = 0; step < 5; ++step) {
          ASSERT_OK(training.Step(300 + step)) << " rank " << self.rank;
        }
      });
      const std::string& text = told.texts()[0][0];
      for (const auto& texts : told.texts()) EXPECT_EQ(texts[0], text);
      EXPECT_TRUE(text.find("plan differs across ranks: rank 0 has 1, rank 1 "
                            "has 2.") != std::string::npos)
          << text;
    }
  }
}

// What some ranks did while others had joined, those count as well.
RING_TEST(AJoinBringsRanksIntoTheSameStep) {
  for (const RankOptions& setup : SetupsOfTraining()) {
    RunRanks(setup, [&](Rank& self) {
      Training training(self);
      for (int step = 0; step < 3; ++step) ASSERT_OK(training.Step(1 + step));
      if (self.rank == self.size - 1) {
        // Alone: the others bring zeros.
        for (int step = 0; step < 3; ++step) {
          std::vector<float> data(kBuckets, 5);
          for (int bucket = 0; bucket < kBuckets; ++bucket) {
            ASSERT_OK(self.engine->Run(Training::Bucket(
                bucket, &data[bucket],
                bucket == 0 ? StepRole::kBegins : StepRole::kContinues)));
            EXPECT_EQ(data[bucket], 5.0f);
          }
        }
      }
      int last = -1;
      Request join;
      join.kind = CollectiveKind::kJoin;
      join.name = "join";
      join.last_joined = &last;
      ASSERT_OK(self.engine->Run(std::move(join)));
      EXPECT_EQ(last, self.size - 1);
      for (int step = 0; step < 4; ++step) ASSERT_OK(training.Step(11 + step));
    });
  }
}

// Those that took it have heard; who was in the join had no part in it.
RING_TEST(AStepThatAJoinRefusesIsOverWhenAllGoOn) {
  for (const RankOptions& setup : SetupsOfTraining()) {
    RunRanks(setup, [&](Rank& self) {
      Training training(self);
      for (int turn = 0; turn < 2; ++turn) {
        for (int step = 0; step < 2; ++step) ASSERT_OK(training.Step(1 + step));
        if (self.rank > 0) {
          for (int step = 0; step < 2; ++step) {
            float data = 5;
            Request extreme = Training::Bucket(0, &data, StepRole::kBegins);
            extreme.reduce_op = ReduceOp::kMax;
            EXPECT_EQ(self.engine->Run(std::move(extreme)).code(),
                      StatusCode::kRankMismatch);
          }
        }
        int last = -1;
        Request join;
        join.kind = CollectiveKind::kJoin;
        join.name = "join";
        join.last_joined = &last;
        ASSERT_OK(self.engine->Run(std::move(join)));
        for (int step = 0; step < 3; ++step) {
          ASSERT_OK(training.Step(11 + step));
        }
      }
    });
  }
}

}  // namespace
}  // namespace ring_keras
