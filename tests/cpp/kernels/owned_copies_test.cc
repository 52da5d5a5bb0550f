// A request without memory for its copies says so, and throws nothing.
#include "tf_ops/kernels/owned_copies.h"

#include <cstdlib>
#include <new>
#include <vector>

#include "tests/cpp/support/test.h"

namespace {

constexpr size_t kLargeNbytes = size_t{1} << 20;
// Large allocations of this thread that succeed before one fails; negative:
// all do.
thread_local int large_left = -1;

}  // namespace

// None is inline, or the compiler warns of free() for what new gave.
[[gnu::noinline]] void* operator new(size_t nbytes) {
  if (nbytes >= kLargeNbytes && large_left >= 0 && large_left-- == 0) {
    throw std::bad_alloc();
  }
  void* memory = std::malloc(nbytes > 0 ? nbytes : 1);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
[[gnu::noinline]] void operator delete(void* memory) noexcept {
  std::free(memory);
}
[[gnu::noinline]] void operator delete(void* memory, size_t) noexcept {
  std::free(memory);
}

namespace ring_keras {
namespace {

constexpr int64_t kCount = kLargeNbytes;

struct Tensors {
  std::vector<float> first = std::vector<float>(kCount, 1);
  std::vector<float> second = std::vector<float>(kCount, 2);

  Request NewRequest() {
    Request request;
    request.kind = CollectiveKind::kAllreduce;
    request.dtype = DataType::kFloat32;
    request.inputs = {{first.data(), {kCount}}, {second.data(), {kCount}}};
    request.outputs = {first.data(), second.data()};
    return request;
  }
};

RING_TEST(CopiesTakeThePlaceOfTensors) {
  Tensors tensors;
  Request request = tensors.NewRequest();
  const StatusOr<DoneCallback> owner = OwnCopies(&request);
  ASSERT_OK(owner.status());
  for (int i = 0; i < 2; ++i) {
    const auto* copy = static_cast<const float*>(request.inputs[i].data);
    EXPECT_EQ(std::vector<float>(copy, copy + kCount),
              i == 0 ? tensors.first : tensors.second);
    EXPECT_EQ(request.outputs[i], static_cast<const void*>(copy));
    EXPECT_NE(static_cast<const void*>(copy),
              i == 0 ? static_cast<const void*>(tensors.first.data())
                     : tensors.second.data());
  }
}

RING_TEST(WithoutMemoryTheRequestIsAsItWas) {
  for (int allocations : {0, 1}) {
    Tensors tensors;
    Request request = tensors.NewRequest();
    large_left = allocations;
    const StatusOr<DoneCallback> owner = OwnCopies(&request);
    large_left = -1;
    EXPECT_EQ(owner.status().code(), StatusCode::kResourceExhausted);
    EXPECT_EQ(request.inputs[0].data,
              static_cast<const void*>(tensors.first.data()));
    EXPECT_EQ(request.outputs[1], static_cast<void*>(tensors.second.data()));
  }
}

}  // namespace
}  // namespace ring_keras
