// What a rank that has left costs those that go on.
#include <algorithm>
#include <atomic>
#include <cstring>
#include <limits>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/cpp/support/test.h"
#include "tf_ops/common/deadline.h"
#include "tf_ops/runtime/engine.h"
#include "tf_ops/transport/frame.h"

namespace ring_keras {
namespace {

using testing::Soon;

// A peer that takes everything, and says nothing or always the same.
class OneSidedStream : public Stream {
 public:
  explicit OneSidedStream(std::string says = "") : says_(std::move(says)) {}

  ssize_t TryWrite(const void*, size_t nbytes) override {
    return static_cast<ssize_t>(nbytes);
  }
  ssize_t TryRead(void* data, size_t nbytes) override {
    ++reads_;
    if (says_.empty() || fell_silent_) return 0;
    const size_t count = std::min(nbytes, says_.size() - said_);
    std::memcpy(data, says_.data() + said_, count);
    said_ = (said_ + count) % says_.size();
    return static_cast<ssize_t>(count);
  }
  Status end() const override { return Status::Ok(); }
  bool delivered() const override { return true; }
  void CloseForWriting() override {}

  void FallSilent() { fell_silent_ = true; }
  // Only with the driver.
  int reads() const { return reads_; }

 private:
  const std::string says_;
  size_t said_ = 0;
  int reads_ = 0;
  std::atomic<bool> fell_silent_{false};
};

// Of a peer that has gone.
class EndedStream : public OneSidedStream {
 public:
  ssize_t TryRead(void*, size_t) override { return kClosed; }
  Status end() const override {
    return Status(StatusCode::kPeerLost, "it was closed");
  }
};

// For a communicator that there is not, so nothing comes of it.
std::string FrameForNobody() {
  FrameHeader header;
  header.type = FrameType::kRelayed;
  header.key = 77;
  return std::string(reinterpret_cast<const char*>(&header), sizeof(header));
}

// Rank 0 of three on three hosts.
std::unique_ptr<Engine> FirstOfThree(std::unique_ptr<Stream> to_1,
                                     std::unique_ptr<Stream> to_2,
                                     double timeout_s = 20) {
  std::vector<MeshPeer> peers(3);
  const auto connect = [&peers](int rank, std::unique_ptr<Stream> stream) {
    std::vector<std::unique_ptr<Stream>> streams;
    streams.push_back(std::move(stream));
    peers[rank].pair = std::make_unique<Pair>(std::move(streams));
  };
  connect(1, std::move(to_1));
  connect(2, std::move(to_2));
  EngineOptions options;
  options.collective_timeout_s = timeout_s;
  options.rank_names = {"rank 0", "rank 1", "rank 2"};
  auto engine = std::make_unique<Engine>(
      options, std::make_unique<Mesh>(0, std::move(Doorbell::Create().value()),
                                      nullptr, nullptr, std::move(peers),
                                      std::vector<int>{0, 1, 2}));
  engine->AddCommunicator(0, {0, 1, 2});
  engine->AddCommunicator(1, {0, 2});
  return engine;
}

// The same, where rank 1 has left, whose connection is open.
struct LastButOne {
  explicit LastButOne(std::string rank_2_says, double timeout_s = 20) {
    auto stream = std::make_unique<OneSidedStream>(std::move(rank_2_says));
    rank_2 = stream.get();
    engine = FirstOfThree(std::make_unique<OneSidedStream>(), std::move(stream),
                          timeout_s);
    engine->OnRankEvent({RankEvent::Kind::kLeft, 1, "rank 1 left"});
  }

  OneSidedStream* rank_2;
  std::unique_ptr<Engine> engine;
};

// In each turn the driver reads from every peer once, and no more often because
// of the one that is not there.
RING_TEST(ATurnOfTheDriverReadsOnce) {
  LastButOne job("");
  Request barrier;
  barrier.communicator_id = 1;
  job.engine->Submit(std::move(barrier), [](const Status&) {});
  // Two threads ask for a look each, again and again: now and then one in a
  // turn, the other in the next.
  int last = 0;
  std::atomic<int> least{std::numeric_limits<int>::max()};
  const std::function<void()> look = [&] {
    const int reads = job.rank_2->reads();
    if (reads > last) least = std::min(least.load(), reads - last);
    last = reads;
  };
  const Deadline deadline = Soon();
  const auto look_again = [&] {
    while (least > 1 && !deadline.Expired()) job.engine->WithDriver(look);
  };
  std::thread other(look_again);
  look_again();
  other.join();
  EXPECT_EQ(least.load(), 1);
}

RING_TEST(APeerThatSendsWithoutEndHoldsUpNoDeadline) {
  LastButOne job(FrameForNobody(), 0.2);
  std::atomic<bool> ended{false};
  Status outcome;
  job.engine->Submit(Request(), [&](const Status& status) {
    outcome = status;
    ended = true;
  });
  EXPECT_TRUE(testing::WaitFor([&] { return ended.load(); }));
  job.rank_2->FallSilent();
  job.engine.reset();
  EXPECT_FALSE(outcome.ok());
}

// The second may have left because of the first, whose last words are still on
// their way.
RING_TEST(OfTwoThatLeftTheFirstIsNamed) {
  const auto engine = FirstOfThree(std::make_unique<EndedStream>(),
                                   std::make_unique<OneSidedStream>());
  engine->OnRankEvent({RankEvent::Kind::kLeft, 2, "rank 2 left"});
  engine->OnRankEvent({RankEvent::Kind::kLeft, 1, "rank 1 left"});
  const Status status = engine->Run(Request());
  EXPECT_EQ(status.code(), StatusCode::kPeerLost);
  EXPECT_TRUE(testing::Has(status.message(), "rank 2 left"))
      << status.message();
}

}  // namespace
}  // namespace ring_keras
