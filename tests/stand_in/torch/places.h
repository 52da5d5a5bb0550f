// torch's device "cuda" on the stand-in: its streams and memory, by torch's own
// types.
#ifndef RING_KERAS_TESTS_STAND_IN_TORCH_PLACES_H_
#define RING_KERAS_TESTS_STAND_IN_TORCH_PLACES_H_

#include <c10/core/Allocator.h>
#include <c10/core/Stream.h>

#include <memory>
#include <vector>

#include "tests/stand_in/device/device.h"
#include "tests/stand_in/device/stream.h"

namespace ring_keras::stand_in {

// Makes `device` the calling thread's for as long as it lives.
class DeviceScope {
 public:
  explicit DeviceScope(int device) : before_(CurrentDevice()) {
    SetCurrentDevice(device);
  }
  ~DeviceScope() { SetCurrentDevice(before_); }
  DeviceScope(const DeviceScope&) = delete;
  DeviceScope& operator=(const DeviceScope&) = delete;

 private:
  const int before_;
};

// The stand-in's stream of torch's.
std::shared_ptr<Stream> StreamOf(const c10::Stream& stream);

// The calling thread's current stream of the device.
c10::Stream CurrentStream(int device);

// Those that torch's pool has given to anybody.
std::vector<c10::Stream> PoolStreams(int device);

// Whether it is as if a graph was captured from all streams.
void SetCaptures(bool value);

// As torch's own: memory that is freed goes back when the stream that was
// current at its allocation has come to what it had been given until then, and
// so have those for which RecordStream() was called, and not before. Who
// touches it later is told so, and the process ends.
c10::Allocator& DeviceAllocator();
void RecordStream(const c10::DataPtr& memory, const c10::Stream& stream);

}  // namespace ring_keras::stand_in

#endif  // RING_KERAS_TESTS_STAND_IN_TORCH_PLACES_H_
