// libcudart: streams.
#include "tests/stand_in/device/stream.h"

#include "tests/stand_in/cuda_abi.h"
#include "tests/stand_in/device/device.h"
#include "tests/stand_in/device/event.h"
#include "tests/stand_in/runtime/events.h"

using namespace ring_keras::stand_in;

int cudaStreamCreateWithPriority(void** stream, unsigned flags,
                                 int /*priority*/) {
  if (DeviceCount() == 0) return Returned(kCudaNoDevice);
  if ((flags & ~kCudaStreamNonBlocking) != 0) {
    return Returned(kCudaInvalidValue);
  }
  MakeContext();
  const bool blocking = (flags & kCudaStreamNonBlocking) == 0;
  *stream = AddStream(Stream::Start(CurrentDevice(), blocking));
  return Returned(DeviceFault());
}

int cudaStreamCreateWithFlags(void** stream, unsigned flags) {
  return cudaStreamCreateWithPriority(stream, flags, 0);
}

int cudaStreamCreate(void** stream) {
  return cudaStreamCreateWithPriority(stream, 0, 0);
}

// Returns at once; what is queued is still done.
int cudaStreamDestroy(void* stream) { return Returned(DestroyStream(stream)); }

int cudaStreamSynchronize(void* stream) {
  const auto found = FindStream(stream);
  if (found == nullptr) return Returned(kCudaInvalidHandle);
  found->Mark()->Wait();
  return Returned(DeviceFault());
}

int cudaStreamQuery(void* stream) {
  const auto found = FindStream(stream);
  if (found == nullptr) return Returned(kCudaInvalidHandle);
  if (DeviceFault() != kCudaSuccess) return Returned(DeviceFault());
  return found->IsIdle() ? kCudaSuccess : kCudaNotReady;
}

int cudaStreamWaitEvent(void* stream, void* event, unsigned /*flags*/) {
  const auto found = FindStream(stream);
  const auto found_event = Events().Find(event);
  if (found == nullptr || found_event == nullptr) {
    return Returned(kCudaInvalidHandle);
  }
  // What the event holds now; a later record does not matter.
  if (const auto moment = found_event->Recorded()) {
    found->Enqueue([moment] { moment->Wait(); });
  }
  return Returned(DeviceFault());
}

int cudaStreamGetDevice(void* stream, int* device) {
  const auto found = FindStream(stream);
  if (found == nullptr) return Returned(kCudaInvalidHandle);
  *device = found->device();
  return kCudaSuccess;
}

int cudaLaunchHostFunc(void* stream, void (*function)(void*), void* argument) {
  const auto found = FindStream(stream);
  if (found == nullptr) return Returned(kCudaInvalidHandle);
  found->Enqueue([function, argument] { function(argument); });
  return Returned(DeviceFault());
}
