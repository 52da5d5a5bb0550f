// What a step's time was spent on, by the moments of its collectives.
#include "tf_ops/monitoring/step_book.h"

#include <utility>

#include "tests/cpp/support/test.h"

namespace ring_keras {
namespace {

constexpr int kOwnRank = 1;
constexpr int kSize = 3;

// One of step `step` that the program waits for from `awaited` on.
CollectiveRecord Collective(uint64_t step, Ticks arrived, Ticks matched,
                            Ticks done, Ticks awaited, int last_rank) {
  CollectiveRecord record;
  record.step = step;
  record.nbytes = 100;
  record.submitted_at = record.arrived_at = arrived;
  record.matched_at = record.first_byte_at = matched;
  record.last_byte_at = record.done_at = record.released_at = done;
  record.awaited_at = awaited;
  record.last_rank = last_rank;
  return record;
}

void Run(StepBook& book, const CollectiveRecord& record) {
  book.BeginStep(record);
  book.Add(record, false);
}

void ExpectParts(const StepRecord& step) {
  EXPECT_EQ(step.input + step.compute + step.wait + step.exposed,
            step.duration);
}

RING_TEST(SplitsAStepIntoInputComputeWaitAndExposed) {
  StepBook book(kOwnRank, kSize);
  book.BeginSteps(1000);
  book.AddInput(1000, 1030, 8);
  // Backward goes on until 1200; rank 2 comes at 1250.
  Run(book, Collective(7, 1100, 1250, 1300, 1200, 2));

  const auto steps = book.Steps(true);
  ASSERT_EQ(steps.size(), 1u);
  const StepRecord& step = steps[0];
  EXPECT_EQ(step.step, 7u);
  EXPECT_EQ(step.began_at, 1000u);
  EXPECT_EQ(step.duration, 300u);
  EXPECT_EQ(step.input, 30u);
  EXPECT_EQ(step.wait, 50u);
  EXPECT_EQ(step.exposed, 50u);
  EXPECT_EQ(step.overlap, 0u);
  EXPECT_EQ(step.waited_for[2], 50u);
  EXPECT_EQ(step.nbytes, 100u);
  EXPECT_EQ(step.examples, 8.0);
  ExpectParts(step);
}

RING_TEST(OverlapIsWhatMovesWhileTheProgramGoesOn) {
  StepBook book(kOwnRank, kSize);
  book.BeginSteps(1000);
  const auto first = Collective(1, 1010, 1020, 1080, 1060, 0);
  book.BeginStep(first);
  book.Add(first, false);
  book.Add(Collective(1, 1050, 1090, 1100, 1070, 2), false);

  const StepRecord step = book.Steps(true)[0];
  EXPECT_EQ(step.duration, 100u);
  EXPECT_EQ(step.overlap, 40u);
  // To 1080 bytes move, to 1090 rank 2 is missing, then bytes move again.
  EXPECT_EQ(step.exposed, 30u);
  EXPECT_EQ(step.wait, 10u);
  EXPECT_EQ(step.waited_for[0], 0u);
  EXPECT_EQ(step.waited_for[2], 10u);
  ExpectParts(step);
}

RING_TEST(InputOfAStepOfManyCollectivesIsKept) {
  constexpr Ticks kCollectives = 5000;  // More than are kept one by one.
  StepBook book(kOwnRank, kSize);
  book.BeginSteps(1000);
  book.AddInput(1000, 1400, 0);
  book.BeginStep(Collective(1, 2000, 2000, 2000, 2000, 0));
  for (Ticks i = 0; i < kCollectives; ++i) {
    const Ticks at = 2000 + 10 * i;
    book.Add(Collective(1, at, at + 1, at + 2, at, 0), false);
  }
  const StepRecord step = book.Steps(true)[0];
  EXPECT_EQ(step.collectives, kCollectives);
  EXPECT_EQ(step.input, 400u);
  EXPECT_EQ(step.wait, kCollectives);
  EXPECT_EQ(step.exposed, kCollectives);
  ExpectParts(step);
}

// Also of what belongs to no step, and while something is under way.
RING_TEST(HowLongTheProgramStoodStillIsKnownAtAnyTime) {
  StepBook book(kOwnRank, kSize);
  book.BeginSteps(1000);
  Run(book, Collective(1, 1010, 1030, 1040, 1020, 2));
  EXPECT_EQ(book.StoodStill(1050), 20u);
  book.Add(Collective(0, 1060, 1080, 1090, 1060, 2), false);
  EXPECT_EQ(book.StoodStill(1100), 50u);
  // Nothing counts twice, when the step is closed or later.
  Run(book, Collective(2, 1110, 1120, 1125, 1110, 2));
  EXPECT_EQ(book.StoodStill(1130), 65u);
  Run(book, Collective(3, 1140, 1140, 1140, 1140, kOwnRank));
  EXPECT_EQ(book.StoodStill(1150), 65u);
}

RING_TEST(TheLastRankWaitsForNobody) {
  StepBook book(kOwnRank, kSize);
  book.BeginSteps(1000);
  Run(book, Collective(1, 1010, 1050, 1060, 1010, kOwnRank));
  const StepRecord step = book.Steps(true)[0];
  EXPECT_EQ(step.wait, 0u);
  EXPECT_EQ(step.exposed, 50u);
  ExpectParts(step);
}

RING_TEST(BlockingCallsCountWithoutALookAtMoments) {
  StepBook book(kOwnRank, kSize);
  book.BeginSteps(1000);
  const auto one = Collective(1, 1010, 1030, 1040, 1010, 0);
  book.BeginStep(one);
  book.Add(one, true);
  const StepRecord step = book.Steps(true)[0];
  EXPECT_EQ(step.wait, 20u);
  EXPECT_EQ(step.exposed, 10u);
  EXPECT_EQ(step.waited_for[0], 20u);
  ExpectParts(step);
}

RING_TEST(AStepLastsFromTheEndOfTheOneBefore) {
  StepBook book(kOwnRank, kSize);
  book.BeginSteps(1000);
  Run(book, Collective(1, 1010, 1010, 1020, 1010, 0));
  // In none, after the step's last: it counts into the next.
  book.Add(Collective(0, 1030, 1040, 1050, 1030, 2), false);
  Run(book, Collective(2, 1110, 1110, 1120, 1110, 0));
  EXPECT_EQ(book.Steps(false).size(), 1u);
  const auto steps = book.Steps(true);
  ASSERT_EQ(steps.size(), 2u);
  EXPECT_EQ(steps[0].duration, 20u);
  EXPECT_EQ(steps[0].collectives, 1u);
  EXPECT_EQ(steps[1].began_at, 1020u);
  EXPECT_EQ(steps[1].duration, 100u);
  EXPECT_EQ(steps[1].collectives, 2u);
  EXPECT_EQ(steps[1].waited_for[2], 10u);
  const StepTotals totals = book.Totals(true);
  EXPECT_EQ(totals.step, 2u);
  EXPECT_EQ(totals.duration, 120u);
  EXPECT_EQ(totals.wait, 10u);
}

RING_TEST(StepsAreThoseOfTheRanksThatTrainTogether) {
  constexpr int kSet = 4;
  const auto of_set = [](uint64_t step, Ticks arrived, Ticks matched,
                         Ticks done) {
    auto record = Collective(step, arrived, matched, done, arrived, 2);
    record.communicator_id = kSet;
    return record;
  };
  StepBook book(kOwnRank, kSize);
  book.BeginSteps(1000);
  Run(book, Collective(5, 1010, 1010, 1020, 1010, 0));
  Run(book, of_set(1, 1030, 1040, 1050));
  // Of other ranks' steps: it ends none of these, and counts into the next.
  book.Add(Collective(6, 1060, 1070, 1080, 1060, 0), false);
  EXPECT_EQ(book.Steps(true)[1].duration, 30u);
  Run(book, of_set(2, 1100, 1110, 1120));
  Run(book, Collective(7, 1130, 1130, 1140, 1130, 0));

  const auto steps = book.Steps(true);
  ASSERT_EQ(steps.size(), 4u);
  const std::pair<int, uint64_t> expected[] = {
      {0, 5}, {kSet, 1}, {kSet, 2}, {0, 7}};
  for (size_t i = 0; i < steps.size(); ++i) {
    EXPECT_EQ(steps[i].communicator_id, expected[i].first);
    EXPECT_EQ(steps[i].step, expected[i].second);
    ExpectParts(steps[i]);
  }
  EXPECT_EQ(steps[1].waited_for[2], 10u);
  EXPECT_EQ(steps[2].began_at, 1050u);
  EXPECT_EQ(steps[2].duration, 70u);
  EXPECT_EQ(steps[2].collectives, 2u);
  EXPECT_EQ(steps[2].waited_for[0], 10u);
  EXPECT_EQ(steps[3].duration, 20u);
  EXPECT_EQ(book.Totals(false).communicator_id, kSet);
  EXPECT_EQ(book.Totals(true).communicator_id, 0);
}

RING_TEST(WhatIsBetweenEpochsBelongsToNoStep) {
  StepBook book(kOwnRank, kSize);
  book.BeginSteps(1000);
  Run(book, Collective(1, 1010, 1010, 1020, 1010, 0));
  book.Add(Collective(0, 1030, 1040, 5000, 1030, 2), false);
  book.AddInput(2000, 5500, 0);
  book.BeginSteps(6000);
  Run(book, Collective(2, 6010, 6010, 6020, 6010, 0));
  const auto steps = book.Steps(true);
  ASSERT_EQ(steps.size(), 2u);
  EXPECT_EQ(steps[1].duration, 20u);
  EXPECT_EQ(steps[1].input, 0u);
  EXPECT_EQ(steps[1].wait, 0u);
  EXPECT_EQ(book.Totals(true).duration, 40u);
}

RING_TEST(AStepOfAnyNumberOfCollectivesAddsUp) {
  StepBook book(kOwnRank, kSize);
  book.BeginSteps(1000);
  const auto first = Collective(1, 1000, 1000, 1001, 1000, 0);
  book.BeginStep(first);
  constexpr int kCount = 10000;
  for (int i = 0; i < kCount; ++i) {
    const Ticks at = 1000 + i * 10;
    book.Add(Collective(i + 1 == kCount ? 1 : 0, at, at + 4, at + 6, at, 2),
             false);
  }
  const StepRecord step = book.Steps(true)[0];
  EXPECT_EQ(step.collectives, static_cast<uint64_t>(kCount));
  EXPECT_EQ(step.wait, 4u * kCount);
  EXPECT_EQ(step.exposed, 2u * kCount);
  ExpectParts(step);
}

RING_TEST(KeepsTheLastSteps) {
  StepBook book(kOwnRank, kSize);
  book.BeginSteps(1000);
  constexpr uint64_t kCount = StepBook::kSteps + 5;
  for (uint64_t step = 1; step <= kCount; ++step) {
    const Ticks at = 1000 + step * 10;
    Run(book, Collective(step, at, at + 1, at + 2, at, 2));
  }
  const auto steps = book.Steps(true);
  ASSERT_EQ(steps.size(), StepBook::kSteps);
  EXPECT_EQ(steps.front().step, 6u);
  EXPECT_EQ(steps.back().step, kCount);
  EXPECT_EQ(book.Totals(true).step, kCount);
}

}  // namespace
}  // namespace ring_keras
