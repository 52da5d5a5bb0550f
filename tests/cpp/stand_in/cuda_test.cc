// Streams, events, memory and launches of the stand-in.
#include <atomic>
#include <cstring>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "tests/cpp/stand_in/support.h"
#include "tests/cpp/support/standard_error_capture.h"
#include "tests/stand_in/cuda_abi.h"
#include "tests/stand_in/stand_in.h"
#include "tf_ops/cuda/device_arguments.h"
#include "tf_ops/cuda/device_code.h"

namespace ring_keras::testing {
namespace {

using namespace stand_in;

// Host code that a stream runs.
struct Step {
  std::vector<int>* order;
  int number;
  static void Run(void* step) {
    auto* self = static_cast<Step*>(step);
    self->order->push_back(self->number);
  }
};

RING_TEST(AStreamWorksLaterAndInOrder) {
  TestStream stream;
  void* gate = RingKerasStandInHold(stream.get());
  std::vector<int> order;
  std::vector<Step> steps;
  for (int i = 0; i < 10; ++i) steps.push_back({&order, i});
  for (Step& step : steps) {
    EXPECT_EQ(cudaLaunchHostFunc(stream.get(), &Step::Run, &step), 0);
  }
  EXPECT_EQ(cudaStreamQuery(stream.get()), kCudaNotReady);
  EXPECT_TRUE(order.empty());
  RingKerasStandInOpen(gate);
  stream.Synchronize();
  EXPECT_EQ(cudaStreamQuery(stream.get()), 0);
  EXPECT_EQ(order, (std::vector<int>{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}));
}

RING_TEST(AnEventOrdersTwoStreams) {
  TestStream first;
  TestStream second;
  void* event = nullptr;
  ASSERT_EQ(cudaEventCreateWithFlags(&event, kCudaEventDisableTiming), 0);
  // Never recorded: it counts as reached.
  EXPECT_EQ(cudaEventQuery(event), 0);
  EXPECT_EQ(cudaStreamWaitEvent(second.get(), event, 0), 0);
  second.Synchronize();

  std::vector<int> order;
  Step one = {&order, 1};
  Step two = {&order, 2};
  void* gate = RingKerasStandInHold(first.get());
  cudaLaunchHostFunc(first.get(), &Step::Run, &one);
  EXPECT_EQ(cudaEventRecord(event, first.get()), 0);
  EXPECT_EQ(cudaEventQuery(event), kCudaNotReady);
  EXPECT_EQ(cudaStreamWaitEvent(second.get(), event, 0), 0);
  cudaLaunchHostFunc(second.get(), &Step::Run, &two);
  EXPECT_EQ(cudaStreamQuery(second.get()), kCudaNotReady);
  RingKerasStandInOpen(gate);
  second.Synchronize();
  EXPECT_EQ(order, (std::vector<int>{1, 2}));
  EXPECT_EQ(cudaEventQuery(event), 0);
  EXPECT_EQ(cudaGetLastError(), 0) << "'not ready' is not kept as an error";
  EXPECT_EQ(cudaEventDestroy(event), 0);
}

RING_TEST(AWaitIsForTheRecordBeforeIt) {
  TestStream first;
  TestStream second;
  void* event = nullptr;
  ASSERT_EQ(cudaEventCreateWithFlags(&event, kCudaEventDisableTiming), 0);
  EXPECT_EQ(cudaEventRecord(event, first.get()), 0);
  EXPECT_EQ(cudaStreamWaitEvent(second.get(), event, 0), 0);
  void* gate = RingKerasStandInHold(first.get());
  EXPECT_EQ(cudaEventRecord(event, first.get()), 0);
  second.Synchronize();  // Does not wait for the second record.
  RingKerasStandInOpen(gate);
  EXPECT_EQ(cudaEventSynchronize(event), 0);
  EXPECT_EQ(cudaEventDestroy(event), 0);
}

RING_TEST(TheDefaultStreamIsOrderedWithBlockingStreams) {
  void* blocking = nullptr;
  ASSERT_EQ(cudaStreamCreate(&blocking), 0);
  std::vector<int> order;
  std::vector<Step> steps = {{&order, 0}, {&order, 1}, {&order, 2}};
  void* gate = RingKerasStandInHold(blocking);
  cudaLaunchHostFunc(blocking, &Step::Run, &steps[0]);
  cudaLaunchHostFunc(nullptr, &Step::Run, &steps[1]);
  cudaLaunchHostFunc(blocking, &Step::Run, &steps[2]);
  RingKerasStandInOpen(gate);
  EXPECT_EQ(cudaStreamSynchronize(blocking), 0);
  EXPECT_EQ(order, (std::vector<int>{0, 1, 2}));
  EXPECT_EQ(cudaStreamDestroy(blocking), 0);
}

RING_TEST(EachThreadHasADevice) {
  ASSERT_EQ(cudaSetDevice(1), 0);
  TestStream on_one;
  std::thread([&] {
    int device = -1;
    EXPECT_EQ(cudaGetDevice(&device), 0);
    EXPECT_EQ(device, 0);
    void* event = nullptr;
    EXPECT_EQ(cudaEventCreateWithFlags(&event, 0), 0);
    EXPECT_EQ(cudaEventRecord(event, on_one.get()), kCudaInvalidHandle)
        << "an event is of its device";
    EXPECT_EQ(cudaEventDestroy(event), 0);
  }).join();
  EXPECT_EQ(cudaSetDevice(4), kCudaInvalidDevice);
  EXPECT_EQ(cudaGetLastError(), kCudaInvalidDevice);
  EXPECT_EQ(cudaGetLastError(), 0);
  EXPECT_EQ(cudaSetDevice(0), 0);
}

RING_TEST(CopiesWaitForTheirStream) {
  TestStream stream;
  const std::vector<int> values = {1, 2, 3};
  DeviceArray<int> from(values);
  DeviceArray<int> to(std::vector<int>{0, 0, 0});
  void* gate = RingKerasStandInHold(stream.get());
  EXPECT_EQ(cudaMemcpyAsync(to.get(), from.get(), 12, kCudaDeviceToDevice,
                            stream.get()),
            0);
  EXPECT_EQ(to.Read(), (std::vector<int>{0, 0, 0}));
  RingKerasStandInOpen(gate);
  stream.Synchronize();
  EXPECT_EQ(to.Read(), values);
  int host = 0;
  EXPECT_EQ(cudaMemcpyAsync(&host, &host, 4, kCudaDeviceToHost, stream.get()),
            kCudaInvalidValue);
}

RING_TEST(SpawnedUsesMemoryTakenBack) {
  if (!IsSpawned()) return;
  TestStream stream;
  void* memory = nullptr;
  cudaMalloc(&memory, 100);
  void* gate = RingKerasStandInHold(stream.get());
  cudaMemsetAsync(memory, 0, 100, stream.get());
  RingKerasStandInTakeBack(memory);
  RingKerasStandInOpen(gate);
  stream.Synchronize();
}

RING_TEST(SpawnedReadsFreedMemory) {
  if (!IsSpawned()) return;
  void* memory = nullptr;
  cudaMalloc(&memory, 100);
  cudaFree(memory);
  volatile char byte = *static_cast<volatile char*>(memory);
  (void)byte;
}

void ExpectEndsWith(const char* test, const char* words) {
  StandardErrorCapture capture;
  const int status = Ended(Spawn(test));
  EXPECT_TRUE(WIFSIGNALED(status) || WEXITSTATUS(status) != 0);
  const std::string text = capture.Text();
  EXPECT_TRUE(text.find(words) != text.npos) << text;
}

RING_TEST(UseOfMemoryTakenBackEndsTheProcess) {
  ExpectEndsWith("SpawnedUsesMemoryTakenBack",
                 "cudaMemsetAsync uses freed memory");
}

RING_TEST(UseOfFreedMemoryIsAFaultThatSaysSo) {
  ExpectEndsWith("SpawnedReadsFreedMemory", "use of freed device memory");
}

RING_TEST(CudaFreeWaitsForTheDevice) {
  TestStream stream;
  void* memory = nullptr;
  ASSERT_EQ(cudaMalloc(&memory, 100), 0);
  void* gate = RingKerasStandInHold(stream.get());
  EXPECT_EQ(cudaMemsetAsync(memory, 0, 100, stream.get()), 0);
  std::atomic<bool> freed = false;
  std::thread frees([&] {
    EXPECT_EQ(cudaFree(memory), 0);
    freed = true;
  });
  EXPECT_FALSE(freed);
  RingKerasStandInOpen(gate);
  frees.join();
  EXPECT_EQ(cudaFree(memory), kCudaInvalidValue) << "it was freed before";
  EXPECT_EQ(cudaGetLastError(), kCudaInvalidValue);
}

RING_TEST(AFaultOfTheDeviceIsToldToAll) {
  TestStream stream;
  RingKerasStandInFailDevice(kCudaIllegalAddress);
  EXPECT_EQ(cudaStreamQuery(stream.get()), kCudaIllegalAddress);
  EXPECT_EQ(cudaDeviceSynchronize(), kCudaIllegalAddress);
  RingKerasStandInFailDevice(0);
  EXPECT_EQ(cudaStreamQuery(stream.get()), 0);
  EXPECT_EQ(cudaGetLastError(), kCudaIllegalAddress);
}

void* Compile(const char* source, const char* option, int expected) {
  void* program = nullptr;
  EXPECT_EQ(
      nvrtcCreateProgram(&program, source, "code.cu", 0, nullptr, nullptr), 0);
  EXPECT_EQ(nvrtcCompileProgram(program, 1, &option), expected);
  return program;
}

RING_TEST(NvrtcRefusesWhatItDoesNotKnow) {
  for (void* program :
       {Compile("int x;", "--gpu-architecture=sm_90", kNvrtcCompilation),
        Compile(cuda::kDeviceCode, "--gpu-architecture=sm_12",
                kNvrtcInvalidOption)}) {
    size_t size = 0;
    EXPECT_EQ(nvrtcGetProgramLogSize(program, &size), 0);
    EXPECT_GT(size, 1u);
    EXPECT_EQ(nvrtcDestroyProgram(&program), 0);
  }
}

RING_TEST(AKernelRunsInItsStream) {
  void* program =
      Compile(cuda::kDeviceCode, "--gpu-architecture=sm_90", kNvrtcSuccess);
  size_t size = 0;
  ASSERT_EQ(nvrtcGetCUBINSize(program, &size), 0);
  std::string image(size, '\0');
  ASSERT_EQ(nvrtcGetCUBIN(program, image.data()), 0);
  EXPECT_EQ(nvrtcDestroyProgram(&program), 0);
  void* module = nullptr;
  void* function = nullptr;
  std::thread([&] {
    EXPECT_EQ(cuModuleLoadData(&module, image.c_str()), kCudaInvalidContext)
        << "the driver makes no context";
  }).join();
  ASSERT_EQ(cudaSetDevice(0), 0);
  ASSERT_EQ(cuModuleLoadData(&module, image.c_str()), 0);
  EXPECT_EQ(cuModuleGetFunction(&function, module, "none"), kCudaNotFound);
  ASSERT_EQ(cuModuleGetFunction(&function, module, "ring_keras_copy"), 0);

  TestStream stream;
  std::vector<char> values(10000);
  std::iota(values.begin(), values.end(), 0);
  DeviceArray<char> from(values);
  DeviceArray<char> to(values.size());
  cuda::CopyArguments arguments = {};
  arguments.from[0] = from.get();
  arguments.to[0] = to.get();
  arguments.count[0] = 10000;
  arguments.tiles_end[0] = 1;
  arguments.segment_count = 1;
  arguments.scale = 1;
  void* parameters[] = {&arguments};
  void* gate = RingKerasStandInHold(stream.get());
  RingKerasStandInClearLog();
  ASSERT_EQ(cuLaunchKernel(function, 1, 1, 1, cuda::kThreads, 1, 1, 0,
                           stream.get(), parameters, nullptr),
            0);
  std::memset(&arguments, 0, sizeof(arguments));  // Copied by then.
  RingKerasStandInOpen(gate);
  stream.Synchronize();
  EXPECT_EQ(to.Read(), values);
  EXPECT_EQ(std::string(RingKerasStandInLog()), "kernel ring_keras_copy\n");

  cudaSetDevice(1);
  TestStream elsewhere;
  EXPECT_EQ(cuLaunchKernel(function, 1, 1, 1, cuda::kThreads, 1, 1, 0,
                           elsewhere.get(), parameters, nullptr),
            kCudaInvalidHandle);
  cudaSetDevice(0);
  EXPECT_EQ(cuModuleUnload(module), 0);
}

}  // namespace
}  // namespace ring_keras::testing
