// libcudart: events.
#include "tests/stand_in/device/event.h"

#include <atomic>
#include <chrono>
#include <utility>

#include "tests/stand_in/cuda_abi.h"
#include "tests/stand_in/device/device.h"
#include "tests/stand_in/device/stream.h"
#include "tests/stand_in/runtime/events.h"
#include "tests/stand_in/stand_in.h"

namespace ring_keras::stand_in {

// Never destroyed, as the streams.
Registry<Event>& Events() {
  static auto* events = new Registry<Event>;
  return *events;
}

}  // namespace ring_keras::stand_in

using namespace ring_keras::stand_in;

namespace {

constexpr int kRelaxed = 2;  // cudaStreamCaptureModeRelaxed

std::atomic<bool> capturing{false};
thread_local int capture_mode = 0;  // cudaStreamCaptureModeGlobal

}  // namespace

int cudaEventCreateWithFlags(void** event, unsigned flags) {
  if (DeviceCount() == 0) return Returned(kCudaNoDevice);
  MakeContext();
  const bool is_timed = (flags & kCudaEventDisableTiming) == 0;
  *event = Events().Add(std::make_shared<Event>(CurrentDevice(), is_timed));
  return Returned(DeviceFault());
}

int cudaEventCreate(void** event) { return cudaEventCreateWithFlags(event, 0); }

int cudaEventDestroy(void* event) {
  const bool existed = Events().Remove(event) != nullptr;
  return Returned(existed ? kCudaSuccess : kCudaInvalidHandle);
}

int cudaEventRecord(void* event, void* stream) {
  const auto found = Events().Find(event);
  const auto found_stream = FindStream(stream);
  if (found == nullptr || found_stream == nullptr ||
      found->device() != found_stream->device()) {
    return Returned(kCudaInvalidHandle);
  }
  found->Record(found_stream->Mark());
  return Returned(DeviceFault());
}

int cudaEventQuery(void* event) {
  const auto found = Events().Find(event);
  if (found == nullptr) return Returned(kCudaInvalidHandle);
  if (DeviceFault() != kCudaSuccess) return Returned(DeviceFault());
  if (capturing && capture_mode != kRelaxed) {
    return Returned(kCudaCaptureUnsupported);
  }
  const auto moment = found->Recorded();
  const bool done = moment == nullptr || moment->IsReached();
  return done ? kCudaSuccess : kCudaNotReady;
}

int cudaEventSynchronize(void* event) {
  const auto found = Events().Find(event);
  if (found == nullptr) return Returned(kCudaInvalidHandle);
  if (const auto moment = found->Recorded()) moment->Wait();
  return Returned(DeviceFault());
}

int cudaEventElapsedTime(float* milliseconds, void* start, void* end) {
  const auto found_start = Events().Find(start);
  const auto found_end = Events().Find(end);
  if (found_start == nullptr || found_end == nullptr ||
      !found_start->is_timed() || !found_end->is_timed()) {
    return Returned(kCudaInvalidHandle);
  }
  const auto from = found_start->Recorded();
  const auto to = found_end->Recorded();
  if (from == nullptr || to == nullptr) return Returned(kCudaInvalidHandle);
  if (!from->IsReached() || !to->IsReached()) return Returned(kCudaNotReady);
  *milliseconds =
      std::chrono::duration<float, std::milli>(to->Time() - from->Time())
          .count();
  return kCudaSuccess;
}

int cudaThreadExchangeStreamCaptureMode(int* mode) {
  capture_mode = std::exchange(*mode, capture_mode);
  return kCudaSuccess;
}

void RingKerasStandInCapture(int is_on) { capturing = is_on != 0; }

int64_t RingKerasStandInEvents() { return Events().Count(); }
