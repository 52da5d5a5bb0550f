#include "tests/stand_in/device/stream.h"

#include <chrono>
#include <cstdlib>
#include <map>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/stand_in/cuda_abi.h"
#include "tests/stand_in/device/device.h"
#include "tests/stand_in/device/registry.h"
#include "tests/stand_in/stand_in.h"

namespace ring_keras::stand_in {
namespace {

// Never destroyed: work may hang when the process ends, and its thread with it.
Registry<Stream>& Streams() {
  static auto* streams = new Registry<Stream>;
  return *streams;
}

int JitterMicroseconds() {
  static const int jitter = [] {
    const char* text = std::getenv("STAND_IN_JITTER_US");
    return text == nullptr ? 0 : std::atoi(text);
  }();
  return jitter;
}

// What a device does next is not known to the host.
void Dawdle() {
  if (JitterMicroseconds() == 0) return;
  thread_local std::minstd_rand random(std::random_device{}());
  std::uniform_int_distribution<int> microseconds(0, JitterMicroseconds());
  std::this_thread::sleep_for(std::chrono::microseconds(microseconds(random)));
}

}  // namespace

// One per device, made at first use, ordered with all blocking streams.
struct DefaultStreams {
  std::mutex mutex;
  std::map<int, std::shared_ptr<Stream>> streams;

  static DefaultStreams& Get() {
    static auto* instance = new DefaultStreams;
    return *instance;
  }

  std::shared_ptr<Stream> Find(int device) {
    std::lock_guard lock(mutex);
    const auto found = streams.find(device);
    return found == streams.end() ? nullptr : found->second;
  }

  std::shared_ptr<Stream> Make(int device) {
    std::lock_guard lock(mutex);
    std::shared_ptr<Stream>& stream = streams[device];
    if (stream == nullptr) {
      stream.reset(new Stream(device, true, true));
      stream->StartThread(stream);
    }
    return stream;
  }
};

std::shared_ptr<Stream> Stream::Start(int device, bool blocking) {
  std::shared_ptr<Stream> stream(new Stream(device, blocking, false));
  stream->StartThread(stream);
  return stream;
}

void Stream::StartThread(std::shared_ptr<Stream> self) {
  std::thread([self = std::move(self)] { self->Run(); }).detach();
}

void Stream::Run() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return !queue_.empty() || ended_; });
    if (queue_.empty()) return;
    Item item = std::move(queue_.front());
    queue_.pop_front();
    working_ = true;
    lock.unlock();
    Dawdle();
    if (item.work != nullptr) item.work();
    item.work = nullptr;  // What it holds is let go outside the lock.
    lock.lock();
    working_ = false;
    if (item.moment == nullptr) continue;
    // Who has waited for the moment finds the stream idle.
    lock.unlock();
    item.moment->Reach();
    item.moment = nullptr;
    lock.lock();
  }
}

void Stream::Push(Work work, std::shared_ptr<Moment> moment) {
  std::lock_guard lock(mutex_);
  queue_.push_back({std::move(work), std::move(moment)});
  changed_.notify_one();
}

void Stream::FollowDefaultStream() {
  if (!blocking_) return;
  std::vector<std::shared_ptr<Moment>> before;
  if (is_default_) {
    for (const auto& stream : Streams().All()) {
      if (stream->blocking_ && stream->device_ == device_) {
        before.push_back(stream->Mark());
      }
    }
  } else if (const auto stream = DefaultStreams::Get().Find(device_)) {
    before.push_back(stream->Mark());
  }
  for (const auto& moment : before) {
    if (!moment->IsReached()) Push([moment] { moment->Wait(); });
  }
}

void Stream::Enqueue(Work work) {
  FollowDefaultStream();
  Push(std::move(work));
}

std::shared_ptr<Moment> Stream::Mark() {
  auto moment = std::make_shared<Moment>();
  Push(nullptr, moment);
  return moment;
}

bool Stream::IsIdle() {
  std::lock_guard lock(mutex_);
  return queue_.empty() && !working_;
}

void Stream::End() {
  std::lock_guard lock(mutex_);
  ended_ = true;
  changed_.notify_one();
}

std::shared_ptr<Stream> FindStream(void* handle) {
  if (handle == nullptr || handle == reinterpret_cast<void*>(1)) {
    if (DeviceCount() == 0) return nullptr;
    return DefaultStreams::Get().Make(CurrentDevice());
  }
  return Streams().Find(handle);
}

void* AddStream(std::shared_ptr<Stream> stream) {
  return Streams().Add(std::move(stream));
}

int DestroyStream(void* handle) {
  const auto stream = Streams().Remove(handle);
  if (stream == nullptr) return kCudaInvalidHandle;
  stream->End();
  return kCudaSuccess;
}

void SynchronizeDevice(int device) {
  std::vector<std::shared_ptr<Moment>> moments;
  for (const auto& stream : Streams().All()) {
    if (stream->device() == device) moments.push_back(stream->Mark());
  }
  if (const auto stream = DefaultStreams::Get().Find(device)) {
    moments.push_back(stream->Mark());
  }
  for (const auto& moment : moments) moment->Wait();
}

}  // namespace ring_keras::stand_in

using ring_keras::stand_in::FindStream;
using ring_keras::stand_in::Moment;
using ring_keras::stand_in::Streams;

void* RingKerasStandInHold(void* stream) {
  const auto found = FindStream(stream);
  if (found == nullptr) return nullptr;
  auto gate = std::make_shared<Moment>();
  found->Enqueue([gate] { gate->Wait(); });
  return new std::shared_ptr<Moment>(gate);
}

void RingKerasStandInOpen(void* gate) {
  auto* moment = static_cast<std::shared_ptr<Moment>*>(gate);
  (*moment)->Reach();
  delete moment;
}

int64_t RingKerasStandInStreams() { return Streams().Count(); }
