// A pair whose peer sends anything, while this rank posts and cancels receives.
//
// What AddressSanitizer watches: the memory of a receive is freed as soon as it
// is done, cancelled, or the pair closed.
#include <map>
#include <memory>
#include <utility>

#include "tests/cpp/support/memory_stream.h"
#include "tests/fuzz/support/fuzz.h"
#include "tests/fuzz/support/script.h"
#include "tf_ops/transport/message_id.h"
#include "tf_ops/transport/pair.h"

namespace ring_keras {
namespace {

constexpr size_t kMaxEarly = 64 << 10;
constexpr int kKeys = 4;
constexpr int kTags = 4;

// A receive, and the memory that it fills.
struct Posted {
  explicit Posted(size_t nbytes, bool combines) : target(new char[nbytes]()) {
    operation.target = target.get();
    operation.nbytes = nbytes;
    if (!combines) return;
    operation.element_nbytes = sizeof(uint32_t);
    operation.combine = [](void* out, const void* a, const void* b,
                           size_t count) {
      // Whole elements, where elements are.
      FUZZ_CHECK(reinterpret_cast<uintptr_t>(out) % sizeof(uint32_t) == 0);
      FUZZ_CHECK(count > 0);
      for (size_t i = 0; i < count; ++i) {
        static_cast<uint32_t*>(out)[i] = static_cast<const uint32_t*>(a)[i] +
                                         static_cast<const uint32_t*>(b)[i];
      }
    };
  }
  std::unique_ptr<char[]> target;
  ReceiveOperation operation;
};

class Rank {
 public:
  explicit Rank(Script script) {
    pipe_in_.chunk_nbytes = 1 + script.Byte();
    const size_t step_count = script.Below(16);
    for (size_t i = 0; i < step_count; ++i) {
      // A receive, a cancellation, or some of what the peer sends.
      const uint8_t what = script.Byte();
      const uint64_t key = script.Below(kKeys);
      const auto tag = static_cast<uint32_t>(script.Below(kTags));
      const size_t count = script.Byte();
      steps_.push_back({what, key, tag, count});
    }
    bytes_ = script.Rest();
    std::vector<std::unique_ptr<Stream>> streams;
    streams.push_back(std::make_unique<MemoryStream>(&pipe_out_, &pipe_in_));
    pair_ = std::make_unique<Pair>(std::move(streams), kMaxEarly);
    pair_->set_control_handler(
        [this](FrameType type, uint64_t key, std::string payload) {
          FUZZ_CHECK(type != FrameType::kData);
          FUZZ_CHECK(payload.size() <= bytes_.size());
          // As the engine does when a peer says that a collective has ended.
          if (type == FrameType::kAbort) Cancel(key);
        });
  }

  void Run() {
    size_t given = 0;
    for (const Step& step : steps_) {
      switch (step.what % 4) {
        case 0:
          Receive(step, /*combines=*/false);
          break;
        case 1:
          Receive(step, /*combines=*/true);
          break;
        case 2:
          Cancel(step.key);
          break;
        default:
          Give(&given, step.count);
      }
      Tidy();
    }
    Give(&given, bytes_.size());
    pipe_in_.ended = true;
    while (pair_->Pump()) {
    }
    FUZZ_CHECK(pair_->closed());
    FUZZ_CHECK(!pair_->failure().ok());
  }

 private:
  struct Step {
    uint8_t what;
    uint64_t key;
    uint32_t tag;
    size_t count;
  };

  void Receive(const Step& step, bool combines) {
    const auto id = std::make_pair(step.key, step.tag);
    if (posted_.count(id) > 0 || cancelled_[step.key]) return;
    const size_t unit = combines ? sizeof(uint32_t) : 1;
    auto& posted = posted_[id];
    posted = std::make_unique<Posted>(step.count * unit, combines);
    pair_->Receive(step.key, step.tag, &posted->operation);
  }

  void Cancel(uint64_t key) {
    pair_->Cancel(key);
    cancelled_[key] = true;
    std::erase_if(
        posted_, [key](const auto& entry) { return entry.first.first == key; });
  }

  void Give(size_t* given, size_t count) {
    pipe_in_.bytes += bytes_.substr(*given, count);
    *given += std::min(count, bytes_.size() - *given);
    while (pair_->Pump()) Tidy();
    Tidy();
  }

  // Frees what the pair must not touch any more.
  void Tidy() {
    for (const auto& [id, posted] : posted_) {
      const ReceiveOperation& operation = posted->operation;
      FUZZ_CHECK(operation.received <= operation.claimed);
      FUZZ_CHECK(operation.claimed <= operation.nbytes);
    }
    std::erase_if(posted_, [this](const auto& entry) {
      return pair_->closed() || entry.second->operation.done();
    });
  }

  MemoryPipe pipe_in_;
  MemoryPipe pipe_out_;
  std::vector<Step> steps_;
  std::string bytes_;
  std::unique_ptr<Pair> pair_;
  std::map<std::pair<uint64_t, uint32_t>, std::unique_ptr<Posted>> posted_;
  std::map<uint64_t, bool> cancelled_;
};

// What a pair sends of these messages to `key`.
std::string Sent(uint64_t key, const std::vector<std::string>& messages) {
  MemoryPipe out;
  MemoryPipe in;
  std::vector<std::unique_ptr<Stream>> streams;
  streams.push_back(std::make_unique<MemoryStream>(&out, &in));
  Pair pair(std::move(streams));
  uint32_t tag = 0;
  for (const std::string& message : messages) {
    SendOperation send;
    pair.Send(key, tag++, message.data(), message.size(), &send);
    pair.SendControl(FrameType::kAnnouncement, key, message);
  }
  return out.bytes;
}

}  // namespace

std::vector<std::string> Seeds() {
  const std::string wire =
      Sent(1, {"12345678", std::string(200, 'x')}) + Sent(2, {"1234"});
  using namespace std::string_literals;  // NOLINT
  return {
      "\xff\0"s + wire,                              // All comes early.
      "\xff\3\0\1\0\x08\0\1\1\xc8\1\2\0\1"s + wire,  // Receives first.
      "\x07\4\3\0\0\x3c\0\1\0\x08\2\2\0\0\3\0\0\x50"s + wire,  // In the middle.
  };
}

void FuzzOne(const std::string& input) { Rank(Script(input)).Run(); }

}  // namespace ring_keras
