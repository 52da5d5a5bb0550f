#include "tf_ops/rendezvous/key_table.h"

#include <string>
#include <vector>

#include "tests/cpp/support/test.h"
#include "tf_ops/rendezvous/limits.h"

namespace ring_keras::rendezvous {
namespace {

RING_TEST(SetReleasesThoseWhoWaitForTheKey) {
  KeyTable table;
  EXPECT_OK(table.Park({0, 1, "a"}));
  EXPECT_OK(table.Park({1, 2, "b"}));
  EXPECT_OK(table.Park({2, 3, "a"}));
  std::vector<KeyTable::Waiter> released;
  EXPECT_OK(table.Set("a", "value", &released));
  ASSERT_EQ(released.size(), 2);
  EXPECT_EQ(released[0].rank, 0);
  EXPECT_EQ(released[1].request_id, 3);
  ASSERT_TRUE(table.Find("a") != nullptr);
  EXPECT_EQ(*table.Find("a"), "value");
  EXPECT_TRUE(table.Find("b") == nullptr);
  EXPECT_EQ(table.TakeAllParked().size(), 1);
}

RING_TEST(ASecondSetReplacesTheValue) {
  KeyTable table;
  std::vector<KeyTable::Waiter> released;
  EXPECT_OK(table.Set("a", "old", &released));
  EXPECT_OK(table.Set("a", "new", &released));
  EXPECT_EQ(*table.Find("a"), "new");
}

RING_TEST(CancelledGetsAreForgotten) {
  KeyTable table;
  EXPECT_OK(table.Park({0, 1, "a"}));
  EXPECT_OK(table.Park({0, 2, "a"}));
  EXPECT_OK(table.Park({1, 1, "a"}));
  table.Cancel(0, 1);
  EXPECT_EQ(table.TakeAllParked().size(), 2);
  EXPECT_OK(table.Park({0, 1, "a"}));
  EXPECT_OK(table.Park({0, 2, "b"}));
  EXPECT_OK(table.Park({1, 1, "a"}));
  table.CancelAll(0);
  EXPECT_EQ(table.TakeAllParked().size(), 1);
}

RING_TEST(KeysValuesAndWaitersAreBounded) {
  KeyTable table;
  std::vector<KeyTable::Waiter> released;
  const auto set = [&](const std::string& key, size_t nbytes) {
    return table.Set(key, std::string(nbytes, 'v'), &released).code();
  };
  EXPECT_EQ(set("", 1), StatusCode::kInvalidArgument);
  EXPECT_EQ(set(std::string(kMaxKeyBytes + 1, 'k'), 1),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(set("a", kMaxValueBytes + 1), StatusCode::kInvalidArgument);
  for (size_t i = 0; i < kMaxParkedGets; ++i) {
    EXPECT_OK(table.Park({0, i, "never"}));
  }
  EXPECT_EQ(table.Park({0, 9999, "never"}).code(),
            StatusCode::kResourceExhausted);
  EXPECT_OK(table.Park({1, 1, "never"}));
}

RING_TEST(AFullStoreStillTakesAShorterValue) {
  KeyTable table;
  std::vector<KeyTable::Waiter> released;
  const std::string large(kMaxValueBytes, 'v');
  int count = 0;
  Status status;
  while (status.ok() && count < 1000) {
    status = table.Set(StrCat("key", count), large, &released);
    if (status.ok()) ++count;
  }
  EXPECT_EQ(status.code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(count, static_cast<int>(kMaxStoreBytes / kMaxValueBytes) - 1);
  EXPECT_OK(table.Set("key0", "short", &released));
  EXPECT_OK(table.Set("another", "short", &released));
}

}  // namespace
}  // namespace ring_keras::rendezvous
