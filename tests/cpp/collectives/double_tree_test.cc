// The shape of the two trees, for every number of members.
#include "tf_ops/collectives/double_tree.h"

#include <bit>
#include <vector>

#include "tests/cpp/support/test.h"

namespace ring_keras {
namespace {

constexpr int kSizes[] = {1,  2,  3,  4,  5,   6,   7,   8,   9,    10,  11,
                          12, 13, 16, 17, 100, 127, 128, 129, 4095, 4096};

bool HasChildren(const TreePlace& place) {
  return place.left != TreePlace::kNone || place.right != TreePlace::kNone;
}

RING_TEST(ParentsAndChildrenKnowEachOther) {
  for (int size : kSizes) {
    for (int tree = 0; tree < kTrees; ++tree) {
      int roots = 0;
      for (int index = 0; index < size; ++index) {
        const TreePlace place = PlaceInTree(tree, index, size);
        for (int child : {place.left, place.right}) {
          if (child == TreePlace::kNone) continue;
          ASSERT_TRUE(0 <= child && child < size);
          ASSERT_EQ(PlaceInTree(tree, child, size).parent, index);
        }
        if (place.parent == TreePlace::kNone) {
          ++roots;
          continue;
        }
        const TreePlace above = PlaceInTree(tree, place.parent, size);
        ASSERT_TRUE((above.left == index) != (above.right == index));
      }
      ASSERT_EQ(roots, 1);
    }
  }
}

// So nobody is far from a root, and no member is on a circle without one.
RING_TEST(TreesAreAsHighAsTheLogarithm) {
  for (int size : kSizes) {
    const int height = std::bit_width(static_cast<unsigned>(size)) - 1;
    for (int tree = 0; tree < kTrees; ++tree) {
      for (int index = 0; index < size; ++index) {
        int steps = 0;
        int at = index;
        while (steps <= height) {
          const int parent = PlaceInTree(tree, at, size).parent;
          if (parent == TreePlace::kNone) break;
          at = parent;
          ++steps;
        }
        ASSERT_TRUE(steps <= height) << index << " of " << size;
      }
    }
  }
}

RING_TEST(NobodyHasChildrenInBothTrees) {
  for (int size : kSizes) {
    for (int index = 0; index < size; ++index) {
      ASSERT_FALSE(HasChildren(PlaceInTree(0, index, size)) &&
                   HasChildren(PlaceInTree(1, index, size)))
          << index << " of " << size;
    }
  }
}

}  // namespace
}  // namespace ring_keras
