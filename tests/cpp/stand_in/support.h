// Device memory and streams for the tests of the stand-in.
#ifndef RING_KERAS_TESTS_CPP_STAND_IN_SUPPORT_H_
#define RING_KERAS_TESTS_CPP_STAND_IN_SUPPORT_H_

#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstddef>
#include <cstdlib>
#include <string>
#include <vector>

#include "tests/cpp/support/test.h"
#include "tests/stand_in/cuda_abi.h"
#include "tests/stand_in/stand_in.h"

namespace ring_keras::testing {

// A stream of the current device.
class TestStream {
 public:
  TestStream() {
    EXPECT_EQ(cudaStreamCreateWithPriority(&handle_,
                                           stand_in::kCudaStreamNonBlocking, 0),
              0);
  }
  ~TestStream() { EXPECT_EQ(cudaStreamDestroy(handle_), 0); }
  TestStream(const TestStream&) = delete;
  TestStream& operator=(const TestStream&) = delete;

  void* get() const { return handle_; }
  void Synchronize() const { EXPECT_EQ(cudaStreamSynchronize(handle_), 0); }

 private:
  void* handle_ = nullptr;
};

// `count` elements on the current device.
template <typename T>
class DeviceArray {
 public:
  explicit DeviceArray(size_t count) : count_(count) {
    EXPECT_EQ(cudaMalloc(&memory_, count * sizeof(T)), 0);
  }
  explicit DeviceArray(const std::vector<T>& values)
      : DeviceArray(values.size()) {
    EXPECT_EQ(cudaMemcpy(memory_, values.data(), values.size() * sizeof(T),
                         stand_in::kCudaHostToDevice),
              0);
  }
  ~DeviceArray() { EXPECT_EQ(cudaFree(memory_), 0); }
  DeviceArray(const DeviceArray&) = delete;
  DeviceArray& operator=(const DeviceArray&) = delete;

  T* get() const { return static_cast<T*>(memory_); }

  // Waits for the default stream only.
  std::vector<T> Read() const {
    std::vector<T> values(count_);
    EXPECT_EQ(cudaMemcpy(values.data(), memory_, count_ * sizeof(T),
                         stand_in::kCudaDeviceToHost),
              0);
    return values;
  }

 private:
  void* memory_ = nullptr;
  size_t count_;
};

// A test that runs in a process of its own, which Spawn() starts: its name is
// no part of another's, and it returns at once if IsSpawned() says no. (A fork
// of a process that has threads may not start others under TSan.)
inline const char* SpawnedWith() { return std::getenv("RING_KERAS_SPAWNED"); }
inline bool IsSpawned() { return SpawnedWith() != nullptr; }

// Starts the test, with a text for it and further variables.
inline pid_t Spawn(const std::string& test, const std::string& text = "none",
                   const std::vector<std::string>& variables = {}) {
  std::vector<std::string> environment = variables;
  environment.push_back("RING_KERAS_SPAWNED=" + text);
  for (char** variable = environ; *variable != nullptr; ++variable) {
    environment.emplace_back(*variable);
  }
  std::vector<char*> pointers;
  for (std::string& variable : environment) pointers.push_back(variable.data());
  pointers.push_back(nullptr);
  std::string program = "/proc/self/exe";
  std::string filter = test;
  char* arguments[] = {program.data(), filter.data(), nullptr};
  pid_t child = -1;
  EXPECT_EQ(posix_spawn(&child, program.c_str(), nullptr, nullptr, arguments,
                        pointers.data()),
            0);
  return child;
}

// How the process ended, as waitpid has it.
inline int Ended(pid_t child) {
  int status = -1;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  return status;
}

}  // namespace ring_keras::testing

#endif  // RING_KERAS_TESTS_CPP_STAND_IN_SUPPORT_H_
