#include "tests/stand_in/device/device.h"

#include <atomic>
#include <cstdlib>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "tests/stand_in/cuda_abi.h"
#include "tests/stand_in/stand_in.h"

namespace ring_keras::stand_in {
namespace {

constexpr int kDefaultDeviceCount = 4;

struct ThreadState {
  int device = 0;
  bool has_context = false;
  int last_error = kCudaSuccess;
};

thread_local ThreadState thread_state;

std::atomic<int> device_fault{kCudaSuccess};

std::vector<int> FindDevices() {
  const char* count_text = std::getenv("STAND_IN_DEVICES");
  const int count =
      count_text == nullptr ? kDefaultDeviceCount : std::atoi(count_text);
  std::vector<int> devices;
  const char* visible = std::getenv("CUDA_VISIBLE_DEVICES");
  if (visible == nullptr) {
    for (int i = 0; i < count; ++i) devices.push_back(i);
    return devices;
  }
  std::istringstream words(visible);
  for (std::string word; std::getline(words, word, ',');) {
    char* end = nullptr;
    const long device = std::strtol(word.c_str(), &end, 10);
    // As the driver does: what follows an unknown one is not seen.
    if (end == word.c_str() || device < 0 || device >= count) break;
    devices.push_back(static_cast<int>(device));
  }
  return devices;
}

const std::vector<int>& Devices() {
  static const auto* devices = new std::vector<int>(FindDevices());
  return *devices;
}

}  // namespace

int DeviceCount() { return static_cast<int>(Devices().size()); }

int PhysicalDevice(int device) { return Devices()[device]; }

int SetCurrentDevice(int device) {
  if (DeviceCount() == 0) return kCudaNoDevice;
  if (device < 0 || device >= DeviceCount()) return kCudaInvalidDevice;
  thread_state.device = device;
  thread_state.has_context = true;
  return kCudaSuccess;
}

int CurrentDevice() { return thread_state.device; }

bool HasContext() { return thread_state.has_context; }

void MakeContext() { thread_state.has_context = true; }

int Returned(int error) {
  // Asking whether something is finished does not fail by the answer "no".
  if (error != kCudaSuccess && error != kCudaNotReady) {
    thread_state.last_error = error;
  }
  return error;
}

int LastError(bool clear) {
  return clear ? std::exchange(thread_state.last_error, kCudaSuccess)
               : thread_state.last_error;
}

int DeviceFault() { return device_fault; }

}  // namespace ring_keras::stand_in

void RingKerasStandInFailDevice(int error) {
  ring_keras::stand_in::device_fault = error;
}
