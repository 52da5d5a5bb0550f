// Memory of torch's tensors on the stand-in's devices.
#include "tests/stand_in/device/memory.h"

#include <c10/util/Exception.h>

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "tests/stand_in/torch/places.h"

namespace ring_keras::stand_in {
namespace {

struct Block {
  void* data;
  std::vector<c10::Stream> users;  // The first allocated it.
  std::mutex mutex;
};

// Frees memory once the last of some moments is reached.
class Reclaimer {
 public:
  Reclaimer() {
    std::thread([this] { Main(); }).detach();
  }

  void Add(void* data, std::vector<std::shared_ptr<Moment>> moments) {
    std::lock_guard<std::mutex> lock(mutex_);
    freed_.push_back({data, std::move(moments)});
    news_.notify_one();
  }

 private:
  struct Freed {
    void* data;
    std::vector<std::shared_ptr<Moment>> moments;
  };

  void Main() {
    std::unique_lock<std::mutex> lock(mutex_);
    while (true) {
      news_.wait_for(lock, kInterval);
      news_.wait(lock, [this] { return !freed_.empty(); });
      std::erase_if(freed_, [](const Freed& freed) {
        for (const auto& moment : freed.moments) {
          if (!moment->IsReached()) return false;
        }
        Free(MemoryKind::kDevice, freed.data);
        return true;
      });
    }
  }

  static constexpr std::chrono::microseconds kInterval{200};
  std::mutex mutex_;
  std::condition_variable news_;
  std::vector<Freed> freed_;
};

void Delete(void* context) {
  static auto* const reclaimer = new Reclaimer;
  auto* const block = static_cast<Block*>(context);
  std::vector<std::shared_ptr<Moment>> moments;
  for (const c10::Stream& user : block->users) {
    moments.push_back(StreamOf(user)->Mark());
  }
  reclaimer->Add(block->data, std::move(moments));
  delete block;
}

class TheAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t nbytes) override {
    const int device = CurrentDevice();
    const c10::Stream stream = CurrentStream(device);
    if (nbytes == 0) return {nullptr, stream.device()};
    void* const data = Allocate(MemoryKind::kDevice, device, nbytes);
    TORCH_CHECK(data != nullptr, "the stand-in has no memory left");
    auto* const block = new Block{data, {stream}, {}};
    return {data, block, &Delete, stream.device()};
  }
  void copy_data(void* /*to*/, const void* /*from*/,
                 size_t /*nbytes*/) const override {
    TORCH_CHECK(false, "the stand-in copies by tensors alone");
  }
};

}  // namespace

c10::Allocator& DeviceAllocator() {
  static auto* const allocator = new TheAllocator;
  return *allocator;
}

void RecordStream(const c10::DataPtr& memory, const c10::Stream& stream) {
  if (memory.get_deleter() != &Delete) return;
  auto* const block = static_cast<Block*>(memory.get_context());
  std::lock_guard<std::mutex> lock(block->mutex);
  block->users.push_back(stream);
}

}  // namespace ring_keras::stand_in
