// Where ranks say that they listen.
#include "tf_ops/runtime/link_addresses.h"

#include <string>

#include "tests/cpp/support/test.h"

namespace ring_keras {
namespace {

RING_TEST(AddressesComeOneALine) {
  const auto addresses =
      ParseAddresses(1, "10.0.0.1 4711\nfe80::1%eth0 65535\n");

  ASSERT_OK(addresses);
  ASSERT_EQ(addresses.value().size(), 2u);
  EXPECT_EQ(addresses.value()[0].host, "10.0.0.1");
  EXPECT_EQ(addresses.value()[0].port, 4711);
  EXPECT_EQ(addresses.value()[1].host, "fe80::1%eth0");
  EXPECT_EQ(addresses.value()[1].port, 65535);
}

// Not even in part: ranks that know unequally many would wait for each other.
RING_TEST(WhatIsNoAddressIsRefusedAsAWhole) {
  for (const char* text :
       {"", "\n", "10.0.0.1", "10.0.0.1 x\n", "10.0.0.1 0\n", "10.0.0.1 -1\n",
        "10.0.0.1 65536\n", "10.0.0.1 99999999999\n", "10.0.0.1 4711\n10.0.0.2",
        "10.0.0.1 4711\n10.0.0.2 x\n"}) {
    EXPECT_EQ(ParseAddresses(1, text).status().code(), StatusCode::kInternal)
        << text;
  }
}

}  // namespace
}  // namespace ring_keras
