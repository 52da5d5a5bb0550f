// Memory that the ranks of one communicator share, across processes: who is
// there, and a pipe from each rank to each.
//
// It is an anonymous file that the process which made the unique id holds open
// until all ranks have mapped it, so nothing is left when processes are killed.
// All of it starts as zeros, and no lock lies in it: a rank that is killed at
// any point leaves it in order.
#ifndef RING_KERAS_TESTS_STAND_IN_NCCL_REGION_H_
#define RING_KERAS_TESTS_STAND_IN_NCCL_REGION_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

namespace ring_keras::stand_in {

constexpr int kMaxRanks = 16;
constexpr size_t kPipeNbytes = size_t{64} << 10;

// Names a region to other processes; travels in the unique id.
struct RegionName {
  uint32_t magic;
  int32_t pid;
  int32_t descriptor;
  uint32_t padding;
  uint64_t nonce;
};

// What a rank says in a split, and the region that the first of a part made.
struct SplitCard {
  std::atomic<uint64_t> said;  // The split's number, from 1, when said.
  int32_t color;
  int32_t key;
  std::atomic<uint64_t> region_made;
  RegionName region;
};

// What a rank says of itself.
struct RankCard {
  std::atomic<uint32_t> taken;
  std::atomic<uint32_t> present;
  int32_t pid;
  int32_t device;  // The same number for the same device on every process.
  uint64_t host;
  std::atomic<uint32_t> finalized;
  // Counts what happened for this rank; it sleeps on it.
  std::atomic<uint32_t> doorbell;
  // Two, as a rank may be in the next split while a peer reads the last.
  SplitCard splits[2];
};

// One rank writes, one reads. Positions only grow.
struct Pipe {
  alignas(64) std::atomic<uint64_t> written;
  alignas(64) std::atomic<uint64_t> read;
  alignas(64) char data[kPipeNbytes];
};

struct RegionContent {
  std::atomic<uint64_t> nonce;
  std::atomic<int32_t> size;
  RankCard ranks[kMaxRanks];
  Pipe pipes[kMaxRanks][kMaxRanks];  // [from][to]
};

class Region {
 public:
  // Makes one; this process holds it open until Release().
  static bool Create(RegionName* name);

  // Null if it is gone, for instance with the process that made it.
  static std::shared_ptr<Region> Open(const RegionName& name);

  // All ranks have it: lets go of what Create() holds, if it was in this
  // process.
  static void Release(const RegionName& name);

  explicit Region(RegionContent* content) : content_(content) {}
  ~Region();
  Region(const Region&) = delete;
  Region& operator=(const Region&) = delete;

  RegionContent* operator->() const { return content_; }

  void Ring(int rank);
  void RingAll();

  // Sleeps until the rank's doorbell is no longer at `seen`, or for some
  // milliseconds.
  void Sleep(int rank, uint32_t seen);

 private:
  RegionContent* content_;
};

}  // namespace ring_keras::stand_in

#endif  // RING_KERAS_TESTS_STAND_IN_NCCL_REGION_H_
