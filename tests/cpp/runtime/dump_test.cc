// What a rank writes down of what it is doing.
#include <signal.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tests/cpp/support/run_ranks.h"
#include "tests/cpp/support/test.h"
#include "tf_ops/runtime/dump_signal.h"
#include "tf_ops/runtime/engine.h"

namespace ring_keras {
namespace {

using testing::Has;
using testing::Rank;
using testing::RankOptions;
using testing::RunRanks;

// For each test one of its own, gone after it.
struct TraceDir {
  const std::filesystem::path path = [] {
    std::string name = std::filesystem::temp_directory_path() / "traceXXXXXX";
    return std::filesystem::path(mkdtemp(name.data()));
  }();
  ~TraceDir() { std::filesystem::remove_all(path); }
  std::string Of(int rank) const {
    std::ifstream file(path / StrCat("rank", rank, ".trace"));
    return {std::istreambuf_iterator<char>(file), {}};
  }
};

RING_TEST(AJoinThatWaitsIsWritten) {
  const TraceDir traces;
  RankOptions options;
  options.trace_dir = traces.path;
  std::atomic<bool> has_written{false};
  RunRanks(options, [&](Rank& self) {
    std::vector<float> data(1);
    Request late;
    late.kind = CollectiveKind::kAllreduce;
    late.name = "late";
    late.dtype = DataType::kFloat32;
    late.inputs = {{data.data(), {1}}};
    late.outputs = {data.data()};
    int last = -1;
    Request join;
    join.kind = CollectiveKind::kJoin;
    join.name = "ring_keras/join";
    join.last_joined = &last;
    if (self.rank == 1) has_written.wait(false);
    std::atomic<int> ended{0};
    const auto done = [&ended](const Status& status) {
      EXPECT_OK(status);
      ++ended;
      ended.notify_all();
    };
    self.engine->Submit(std::move(late), done);
    self.engine->Submit(std::move(join), done);
    if (self.rank == 0) {
      self.engine->Dump("the test asks");
      const std::string text = traces.Of(0);
      EXPECT_TRUE(Has(text, "\"kind\": \"join\"")) << text;
      EXPECT_TRUE(Has(text, "\"name\": \"late\"")) << text;
      has_written = true;
      has_written.notify_all();
    }
    for (int count = 0; (count = ended.load()) < 2;) ended.wait(count);
  });
}

RING_TEST(AWarningNamesAFew) {
  constexpr int kNames = 40;
  const TraceDir traces;
  RankOptions options;
  options.transport = "tcp";
  options.stall_warning_s = 0.2;
  options.trace_dir = traces.path;
  std::atomic<bool> waits{false};
  RunRanks(options, [&](Rank& self) {
    std::atomic<int> ended{0};
    const auto enter = [&](const std::string& name) {
      Request request;
      request.kind = CollectiveKind::kBarrier;
      request.name = name;
      self.engine->Submit(std::move(request), [&](const Status& how) {
        EXPECT_OK(how);
        ++ended;
        ended.notify_all();
      });
    };
    const auto enter_many = [&] {
      for (int i = 0; i < kNames; ++i) enter(StrCat("ahead/", i));
    };
    // Rank 0 waits for longer than rank 1 each time that they warn, so that
    // what is written has its words, and not those that it hears from rank 1.
    if (self.rank == 0) {
      enter("behind");
      waits = true;
      waits.notify_all();
    } else {
      waits.wait(false);
      enter_many();
    }
    if (self.rank == 1) {
      const Deadline deadline = Deadline::After(30);
      while (!Has(traces.Of(0), "more are waited for so") &&
             !deadline.Expired()) {
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
      }
      enter("behind");
    } else {
      for (int count = 0; (count = ended.load()) < 1;) ended.wait(count);
      enter_many();
    }
    for (int count = 0; (count = ended.load()) <= kNames;) ended.wait(count);
  });
  const std::string text = traces.Of(0);
  EXPECT_TRUE(Has(text, "more are waited for so.")) << text;
}

RING_TEST(ASignalIsForTheMembershipInWhichItComes) {
  ListenForDumpSignal();
  raise(SIGUSR2);
  RankOptions options;
  options.size = 1;
  RunRanks(options, [](Rank&) { EXPECT_FALSE(TakeDumpRequest()); });
  raise(SIGUSR2);
  EXPECT_TRUE(TakeDumpRequest());
}

}  // namespace
}  // namespace ring_keras
