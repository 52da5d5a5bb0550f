// Devices, streams and events, as torch's CUDA registers its own.
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <array>
#include <atomic>
#include <mutex>
#include <vector>

#include "tests/stand_in/torch/places.h"

namespace ring_keras::stand_in {
namespace {

constexpr int kMostDevices = 16;
constexpr int kPoolSize = 8;

// Handles of the stand-in's streams; 0 is the default one.
thread_local std::array<c10::StreamId, kMostDevices> current_streams{};
// Whether all streams are as if a graph was captured from them.
std::atomic<bool> captures{false};

c10::Device DeviceOf(int index) {
  return {c10::DeviceType::CUDA, static_cast<c10::DeviceIndex>(index)};
}

c10::Stream NewStream(int device) {
  void* const handle = AddStream(Stream::Start(device, /*blocking=*/false));
  return c10::Stream(c10::Stream::UNSAFE, DeviceOf(device),
                     reinterpret_cast<c10::StreamId>(handle));
}

// What getStreamFromGlobalPool() has given so far.
struct Pool {
  std::vector<c10::Stream> streams;
  size_t next = 0;
};
std::mutex pools_mutex;
std::array<Pool, kMostDevices> pools;  // By device.

c10::Stream FromPool(int device) {
  std::lock_guard<std::mutex> lock(pools_mutex);
  Pool& pool = pools.at(device);
  if (pool.streams.size() < kPoolSize) {
    pool.streams.push_back(NewStream(device));
  }
  return pool.streams[pool.next++ % pool.streams.size()];
}

using Event = std::shared_ptr<Moment>;

class Guard final : public c10::impl::DeviceGuardImplInterface {
 public:
  c10::DeviceType type() const override { return c10::DeviceType::CUDA; }
  c10::Device exchangeDevice(c10::Device device) const override {
    const c10::Device before = getDevice();
    setDevice(device);
    return before;
  }
  c10::Device getDevice() const override { return DeviceOf(CurrentDevice()); }
  void setDevice(c10::Device device) const override {
    uncheckedSetDevice(device);
  }
  void uncheckedSetDevice(c10::Device device) const noexcept override {
    if (device.has_index()) SetCurrentDevice(device.index());
  }
  c10::DeviceIndex deviceCount() const noexcept override {
    return static_cast<c10::DeviceIndex>(DeviceCount());
  }

  c10::Stream getStream(c10::Device device) const override {
    return CurrentStream(device.has_index() ? device.index() : CurrentDevice());
  }
  c10::Stream getDefaultStream(c10::Device device) const override {
    return c10::Stream(c10::Stream::DEFAULT, device);
  }
  c10::Stream getStreamFromGlobalPool(c10::Device device,
                                      bool /*high*/) const override {
    return FromPool(device.index());
  }
  c10::Stream getNewStream(c10::Device device,
                           int /*priority*/) const override {
    return NewStream(device.index());
  }
  c10::Stream exchangeStream(c10::Stream stream) const override {
    const c10::Stream before = CurrentStream(stream.device_index());
    current_streams.at(stream.device_index()) = stream.id();
    return before;
  }
  void* getStreamNativeHandle(const c10::Stream stream) const override {
    return reinterpret_cast<void*>(stream.id());
  }
  bool queryStream(const c10::Stream& stream) const override {
    return StreamOf(stream)->IsIdle();
  }
  void synchronizeStream(const c10::Stream& stream) const override {
    StreamOf(stream)->Mark()->Wait();
  }
  bool isStreamCapturing(const c10::Stream& /*stream*/) const override {
    return captures;
  }

  void record(void** event, const c10::Stream& stream,
              const c10::DeviceIndex /*device*/,
              const c10::EventFlag /*flag*/) const override {
    if (*event == nullptr) *event = new Event;
    *static_cast<Event*>(*event) = StreamOf(stream)->Mark();
  }
  void block(void* event, const c10::Stream& stream) const override {
    if (event == nullptr) return;
    StreamOf(stream)->Enqueue(
        [moment = *static_cast<Event*>(event)] { moment->Wait(); });
  }
  bool queryEvent(void* event) const override {
    return event == nullptr || (*static_cast<Event*>(event))->IsReached();
  }
  void synchronizeEvent(void* event) const override {
    if (event != nullptr) (*static_cast<Event*>(event))->Wait();
  }
  void destroyEvent(void* event,
                    const c10::DeviceIndex /*device*/) const noexcept override {
    delete static_cast<Event*>(event);
  }
  void recordDataPtrOnStream(const c10::DataPtr& memory,
                             const c10::Stream& stream) const override {
    RecordStream(memory, stream);
  }
};

C10_REGISTER_GUARD_IMPL(CUDA, Guard)

}  // namespace

std::shared_ptr<Stream> StreamOf(const c10::Stream& stream) {
  const DeviceScope scope(stream.device_index());
  return FindStream(reinterpret_cast<void*>(stream.id()));
}

c10::Stream CurrentStream(int device) {
  return c10::Stream(c10::Stream::UNSAFE, DeviceOf(device),
                     current_streams.at(device));
}

std::vector<c10::Stream> PoolStreams(int device) {
  std::lock_guard<std::mutex> lock(pools_mutex);
  return pools.at(device).streams;
}

void SetCaptures(bool value) { captures = value; }

}  // namespace ring_keras::stand_in
