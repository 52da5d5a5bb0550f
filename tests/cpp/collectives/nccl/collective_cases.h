// Inputs whose sums are known, and places for outputs.
#ifndef RING_KERAS_TESTS_COLLECTIVES_NCCL_COLLECTIVE_CASES_H_
#define RING_KERAS_TESTS_COLLECTIVES_NCCL_COLLECTIVE_CASES_H_

#include <algorithm>
#include <cmath>
#include <memory>
#include <vector>

#include "tests/cpp/collectives/nccl/device_ranks.h"

namespace ring_keras::testing {

// Small whole numbers: sums are exact in every type.
template <typename T>
std::vector<T> Input(int rank, size_t count) {
  std::vector<T> input(count);
  for (size_t i = 0; i < count; ++i) {
    input[i] = static_cast<T>((i * 7 + rank * 3) % 11);
  }
  return input;
}

inline double SumAt(int size, size_t i) {
  double sum = 0;
  for (int rank = 0; rank < size; ++rank) sum += (i * 7 + rank * 3) % 11;
  return sum;
}

// Gives memory on the device, and keeps it.
class Output {
 public:
  OutputAllocator Allocator() {
    return [this](const Shape& shape) -> StatusOr<void*> {
      shape_ = shape;
      const size_t nbytes = ElementCount(shape) * 8;
      memory_ =
          std::make_unique<DeviceArray<char>>(std::max<size_t>(nbytes, 1));
      return static_cast<void*>(memory_->get());
    };
  }
  const Shape& shape() const { return shape_; }
  template <typename T>
  std::vector<T> Read() const {
    const std::vector<char> bytes = memory_->Read();
    const auto* values = reinterpret_cast<const T*>(bytes.data());
    return std::vector<T>(values, values + ElementCount(shape_));
  }

 private:
  Shape shape_;
  std::unique_ptr<DeviceArray<char>> memory_;
};

// An average of tensors of these counts, scaled so that it is their sum.
inline void TestAverageOfGroup(DeviceRank& self,
                               const std::vector<size_t>& counts) {
  std::vector<std::unique_ptr<DeviceArray<float>>> tensors;
  Request request =
      self.MakeRequest(CollectiveKind::kAllreduce, "group", DataType::kFloat32);
  request.reduce_op = ReduceOp::kAverage;
  request.prescale = 2;
  request.postscale = 0.5 * self.size;
  for (size_t count : counts) {
    tensors.push_back(
        std::make_unique<DeviceArray<float>>(Input<float>(self.rank, count)));
    request.inputs.push_back(
        {tensors.back()->get(), {static_cast<int64_t>(count)}});
    request.outputs.push_back(tensors.back()->get());
  }
  ASSERT_OK(self.engine().Run(std::move(request)));
  for (const auto& tensor : tensors) {
    const std::vector<float> sums = tensor->Read();
    for (size_t i = 0; i < sums.size(); ++i) {
      // A third is not exact.
      ASSERT_TRUE(std::abs(sums[i] - SumAt(self.size, i)) < 1e-4);
    }
  }
}

}  // namespace ring_keras::testing

#endif  // RING_KERAS_TESTS_COLLECTIVES_NCCL_COLLECTIVE_CASES_H_
