// The last collectives, and what each algorithm achieved.
#include "tf_ops/monitoring/recorder.h"

#include "tests/cpp/support/test.h"
#include "tf_ops/monitoring/dump_format.h"

namespace ring_keras {
namespace {

CollectiveRecord Allreduce(const std::string& name, uint64_t nbytes,
                           Ticks transfer) {
  CollectiveRecord record;
  record.SetName(name);
  record.kind = CollectiveKind::kAllreduce;
  record.algorithm = {3, "ring"};
  record.nbytes = nbytes;
  record.size = 4;
  record.last_rank = 2;
  record.arrived_at = 100;
  record.matched_at = record.first_byte_at = 150;
  record.last_byte_at = record.done_at = record.released_at = 150 + transfer;
  return record;
}

RING_TEST(KeepsTheLastCollectivesInTheirOrder) {
  Recorder recorder(0, 4);
  for (size_t i = 0; i < Recorder::kRecords + 3; ++i) {
    recorder.Add(Allreduce("use " + std::to_string(i), 8, 1), false);
  }
  const auto recent = recorder.Recent();
  ASSERT_EQ(recent.size(), Recorder::kRecords);
  EXPECT_EQ(std::string(recent.front().name), "use 3");
  EXPECT_EQ(recent.front().number, 4u);
  EXPECT_EQ(std::string(recent.back().name),
            "use " + std::to_string(Recorder::kRecords + 2));
}

RING_TEST(CountsByAlgorithmAndSize) {
  Recorder recorder(0, 4);
  recorder.Add(Allreduce("a", 1000, 100), false);
  recorder.Add(Allreduce("b", 600, 20), false);
  recorder.Add(Allreduce("c", 1024, 10), false);
  CollectiveRecord failed = Allreduce("d", 1000, 1);
  failed.outcome = StatusCode::kPeerLost;
  recorder.Add(failed, false);

  const auto tallies = recorder.Tallies();
  ASSERT_EQ(tallies.size(), 2u);
  const Tally& small = tallies[0];
  EXPECT_EQ(small.size_class, 10);
  EXPECT_EQ(small.count, 2u);
  EXPECT_EQ(small.nbytes, 1600u);
  EXPECT_EQ(small.wait, 100u);
  EXPECT_EQ(small.transfer, 120u);
  EXPECT_EQ(small.bus_bytes, 1.5 * 1600);
  EXPECT_EQ(small.best_bus_bytes_per_tick, 1.5 * 600 / 20);
  EXPECT_EQ(tallies[1].size_class, 11);
}

RING_TEST(OfALongNameTheEndStays) {
  const std::string name = std::string(200, 'x') + "/bucket3";
  const std::string kept = Allreduce(name, 8, 1).name;
  EXPECT_EQ(kept.size(), CollectiveRecord::kNameBytes - 1);
  EXPECT_EQ(kept.substr(kept.size() - 8), "/bucket3");
}

RING_TEST(NamesAreWrittenAsJson) {
  EXPECT_EQ(JsonText("a\"b\\c\n"), "\"a\\\"b\\\\c\\u000a\"");
}

}  // namespace
}  // namespace ring_keras
