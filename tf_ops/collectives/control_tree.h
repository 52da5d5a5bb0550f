// The ways by which a rank's word reaches all others of a communicator.
//
// Where each rank has a connection to each, a word goes straight to all. Else
// the hosts are a tree, whose nodes are the first ranks of each, and words are
// passed on along its edges: a rank tells those of its host, through shared
// memory, and the first of them tells those next to it in the tree, what it
// hears from them as well. Each rank hears each word once, and those of one
// rank in the order in which it said them, since there is one way from it.
#ifndef RING_KERAS_COLLECTIVES_CONTROL_TREE_H_
#define RING_KERAS_COLLECTIVES_CONTROL_TREE_H_

#include <vector>

namespace ring_keras {

// `host_numbers`: of each rank that of its host. The ranks by host, each
// ascending, and the hosts by their lowest rank.
std::vector<std::vector<int>> RanksByHost(const std::vector<int>& host_numbers);
// The place among `hosts` of that of `rank`.
int HostOf(const std::vector<std::vector<int>>& hosts, int rank);

// A node has so many below it. 4,096 hosts are four levels.
constexpr int kTreeDegree = 8;

class ControlTree {
 public:
  // `hosts`: the ranks by host, the first of each first; `host`: that of
  // `rank`. A host of the tree has a higher number than the one above it.
  ControlTree(const std::vector<std::vector<int>>& hosts, int host, int rank);

  // Whom the rank tells what it has to say itself.
  const std::vector<int>& adjacent() const { return adjacent_; }
  // Whom it tells what it has heard from `from`, one of those.
  std::vector<int> Onward(int from) const;
  // Of these the ones on other hosts.
  const std::vector<int>& remote() const { return remote_; }

 private:
  std::vector<int> local_;   // The others of its host.
  std::vector<int> remote_;  // Empty, unless it is its host's first.
  std::vector<int> adjacent_;
};

}  // namespace ring_keras

#endif  // RING_KERAS_COLLECTIVES_CONTROL_TREE_H_
