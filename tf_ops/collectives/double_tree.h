// Two binary trees over the same members, in one of which at most each has
// children.
//
// Together they load all members alike: with half of the data in each tree, a
// member sends and receives as much as all data have on the way up, and again
// on the way down. Source: Sanders, Speck & Traff 2009,
// doi:10.1016/j.parco.2009.09.001.
#ifndef RING_KERAS_COLLECTIVES_DOUBLE_TREE_H_
#define RING_KERAS_COLLECTIVES_DOUBLE_TREE_H_

namespace ring_keras {

constexpr int kTrees = 2;

// Members, by index, next to one in a tree.
struct TreePlace {
  static constexpr int kNone = -1;
  int parent = kNone;
  int left = kNone;
  int right = kNone;
};

namespace internal {

// The nodes of a tree are numbered from 1, those on the left of a node before
// it, those on the right after it: odd ones are leaves, and the lowest bit of
// the others is as high as they stand. Of a tree that ends at `size`, a node
// beyond has nothing on its right, and its left child stands in its place.
inline int ParentOfNode(int node, int size) {
  int root = 1;
  while (2 * root <= size) root *= 2;
  if (node == root) return 0;
  do {
    const int bit = node & -node;
    node = (node - bit) | (2 * bit);
  } while (node > size);
  return node;
}
inline int LeftOfNode(int node) {
  const int bit = node & -node;
  return bit > 1 ? node - bit / 2 : 0;
}
inline int RightOfNode(int node, int size) {
  const int bit = node & -node;
  int right = bit > 1 ? node + bit / 2 : 0;
  while (right > size) right = LeftOfNode(right);
  return right;
}

}  // namespace internal

// Where a member stands in tree 0 or 1. The second is the first with every
// member one node further, so that leaves and others change places.
inline TreePlace PlaceInTree(int tree, int index, int size) {
  const int node = (index + size - tree) % size + 1;
  const auto member = [&](int number) {
    return number == 0 ? TreePlace::kNone : (number - 1 + tree) % size;
  };
  return {member(internal::ParentOfNode(node, size)),
          member(internal::LeftOfNode(node)),
          member(internal::RightOfNode(node, size))};
}

}  // namespace ring_keras

#endif  // RING_KERAS_COLLECTIVES_DOUBLE_TREE_H_
