// Several tensors seen as one run of bytes.
#include "tf_ops/collectives/fused_tensors.h"

#include <cstdint>
#include <string>
#include <vector>

#include "tests/cpp/support/test.h"

namespace ring_keras {
namespace {

// Tensors of these many bytes, in memory that holds consecutive numbers.
class Tensors {
 public:
  explicit Tensors(const std::vector<int64_t>& sizes) {
    uint8_t next = 0;
    for (int64_t size : sizes) {
      inputs_.emplace_back();
      for (int64_t i = 0; i < size; ++i) inputs_.back().push_back(next++);
      outputs_.emplace_back(size, 0xff);
    }
    arguments.dtype = DataType::kUint8;
    for (size_t i = 0; i < sizes.size(); ++i) {
      arguments.inputs.push_back({inputs_[i].data(), {sizes[i]}});
      arguments.outputs.push_back(outputs_[i].data());
    }
  }

  // Copies the inputs' range to the outputs; what ForEach visited.
  std::vector<uint8_t> Copy(size_t begin, size_t end) {
    std::vector<uint8_t> visited;
    FusedTensors(arguments).ForEach(
        begin, end,
        [&](const char* input, char* output, size_t offset, size_t nbytes) {
          EXPECT_EQ(offset, visited.size());
          EXPECT_TRUE(nbytes > 0);
          for (size_t i = 0; i < nbytes; ++i) {
            output[i] = input[i];
            visited.push_back(static_cast<uint8_t>(input[i]));
          }
        });
    return visited;
  }
  std::vector<uint8_t> Output() const {
    std::vector<uint8_t> all;
    for (const auto& output : outputs_) {
      all.insert(all.end(), output.begin(), output.end());
    }
    return all;
  }

  CollectiveArguments arguments;

 private:
  std::vector<std::vector<uint8_t>> inputs_;
  std::vector<std::vector<uint8_t>> outputs_;
};

RING_TEST(EveryRangeVisitsItsBytesOnceInOrder) {
  const std::vector<std::vector<int64_t>> layouts = {
      {9}, {3, 0, 4, 1}, {0, 0, 5}, {5, 0, 0}, {1, 1, 1, 1}, {0, 2, 0, 2, 0}};
  for (const std::vector<int64_t>& sizes : layouts) {
    size_t total = 0;
    for (int64_t size : sizes) total += size;
    for (size_t begin = 0; begin <= total; ++begin) {
      for (size_t end = begin; end <= total; ++end) {
        Tensors tensors(sizes);
        const std::vector<uint8_t> visited = tensors.Copy(begin, end);
        ASSERT_EQ(visited.size(), end - begin);
        const std::vector<uint8_t> output = tensors.Output();
        for (size_t i = 0; i < total; ++i) {
          const bool inside = begin <= i && i < end;
          ASSERT_EQ(output[i], inside ? i : size_t{0xff});
          if (inside) {
            ASSERT_EQ(visited[i - begin], i);
          }
        }
      }
    }
  }
}

RING_TEST(NoTensorsAndOnlyEmptyOnesAreEmpty) {
  Tensors none({});
  EXPECT_EQ(FusedTensors(none.arguments).nbytes(), 0);
  EXPECT_TRUE(none.Copy(0, 0).empty());
  Tensors empty({0, 0});
  EXPECT_EQ(FusedTensors(empty.arguments).nbytes(), 0);
  EXPECT_TRUE(empty.Copy(0, 0).empty());
}

// No memory behind it: only places are computed.
RING_TEST(TensorsBeyondFourGibibytesAreMeasured) {
  CollectiveArguments arguments;
  arguments.dtype = DataType::kFloat64;
  static char place[2];
  arguments.inputs = {{&place[0], {int64_t{1} << 30, 5}}, {&place[1], {}}};
  arguments.outputs = {&place[0], &place[1]};
  const FusedTensors tensors(arguments);
  EXPECT_EQ(tensors.nbytes(), (size_t{40} << 30) + 8);
  int visits = 0;
  tensors.ForEach(size_t{40} << 30, tensors.nbytes(),
                  [&](const char* input, char*, size_t offset, size_t nbytes) {
                    EXPECT_TRUE(input == &place[1]);
                    EXPECT_EQ(offset, 0);
                    EXPECT_EQ(nbytes, 8);
                    ++visits;
                  });
  EXPECT_EQ(visits, 1);
}

}  // namespace
}  // namespace ring_keras
