// libcuda: which devices there are, and which reach each other.
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <sstream>
#include <string>

#include "tests/stand_in/cuda_abi.h"
#include "tests/stand_in/device/device.h"

using namespace ring_keras::stand_in;

namespace {

constexpr char kName[] = "Stand-in";

bool Exists(int device) { return device >= 0 && device < DeviceCount(); }

}  // namespace

int cuDeviceGetCount(int* count) {
  *count = DeviceCount();
  return kCudaSuccess;
}

int cuDeviceGet(int* device, int ordinal) {
  if (!Exists(ordinal)) return kCudaInvalidDevice;
  *device = ordinal;
  return kCudaSuccess;
}

int cuDeviceGetName(char* name, int length, int device) {
  if (!Exists(device)) return kCudaInvalidDevice;
  if (length < 1) return kCudaInvalidValue;
  const size_t room = static_cast<size_t>(length) - 1;
  const size_t count = std::min(std::strlen(kName), room);
  std::memcpy(name, kName, count);
  name[count] = '\0';
  return kCudaSuccess;
}

int cuDeviceCanAccessPeer(int* can, int device, int peer) {
  if (!Exists(device) || !Exists(peer)) return kCudaInvalidDevice;
  const std::string pair = std::to_string(PhysicalDevice(device)) + "-" +
                           std::to_string(PhysicalDevice(peer));
  const char* apart = std::getenv("STAND_IN_NO_PEER");
  std::istringstream words(apart == nullptr ? "" : apart);
  *can = device != peer;  // To CUDA no device is its own peer.
  for (std::string word; std::getline(words, word, ',');) {
    if (word == pair) *can = 0;
  }
  return kCudaSuccess;
}
