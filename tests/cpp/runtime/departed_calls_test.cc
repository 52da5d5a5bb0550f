// What is under way beyond the step that began it, without a job: it fails at
// once, and says so to whoever waits.
#include "tf_ops/runtime/departed_calls.h"

#include <cstring>
#include <memory>
#include <vector>

#include "tests/cpp/support/test.h"

namespace ring_keras {
namespace {

Request NewRequest(const std::vector<float>& data) {
  Request request;
  request.kind = CollectiveKind::kAllreduce;
  request.name = "departed";
  request.dtype = DataType::kFloat32;
  request.inputs = {{data.data(), {static_cast<int64_t>(data.size())}}};
  return request;
}

Status CopyHere(void* to, const void* from, size_t nbytes) {
  std::memcpy(to, from, nbytes);
  return Status::Ok();
}

RING_TEST(ItWorksOnACopy) {
  std::vector<float> data = {1, 2, 3};
  const auto call = DepartedCall::Submit(NewRequest(data), CopyHere);
  data.assign(3, 0);
  EXPECT_EQ(call->Wait().code(), StatusCode::kNotInitialized);
  const auto results = call->Results();
  ASSERT_EQ(results.size(), 1u);
  ASSERT_EQ(results[0].nbytes, 3 * sizeof(float));
  const auto* copy = static_cast<const float*>(results[0].data);
  EXPECT_EQ(std::vector<float>(copy, copy + 3), (std::vector<float>{1, 2, 3}));
}

RING_TEST(EachSlotHasItsLatestCallOnce) {
  DepartedCalls& calls = DepartedCalls::Get();
  const int64_t slot = calls.NewSlot();
  EXPECT_NE(calls.NewSlot(), slot);
  EXPECT_EQ(calls.Take(slot), nullptr);
  const std::vector<float> data = {1};
  const auto first = DepartedCall::Submit(NewRequest(data), CopyHere);
  const auto second = DepartedCall::Submit(NewRequest(data), CopyHere);
  calls.Put(slot, first);
  calls.Put(slot, second);
  EXPECT_EQ(first.use_count(), 1);
  EXPECT_EQ(calls.Take(slot), second);
  EXPECT_EQ(calls.Take(slot), nullptr);
}

}  // namespace
}  // namespace ring_keras
