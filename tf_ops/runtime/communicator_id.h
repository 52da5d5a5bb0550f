// The numbers by which callers know communicators.
//
// Within a membership they count from 0, which is the whole job. What outlives
// a membership, as a traced graph does, holds a number that says which
// generation it is of, so that it is refused in another one, where its ranks
// may be others.
#ifndef RING_KERAS_RUNTIME_COMMUNICATOR_ID_H_
#define RING_KERAS_RUNTIME_COMMUNICATOR_ID_H_

#include <cstdint>

namespace ring_keras {

// How many communicators a membership can have had.
inline constexpr int kCommunicatorsPerGeneration = 1 << 16;

// From here on they are given by the members alone; below, by all ranks
// together.
inline constexpr int kFirstOfMembers = kCommunicatorsPerGeneration / 2;

// What is added to the numbers of a generation's communicators. Never 0: a
// number below kCommunicatorsPerGeneration means whatever membership there is.
constexpr int CommunicatorBase(uint64_t generation) {
  constexpr uint64_t kBases = (uint64_t{1} << 31) / kCommunicatorsPerGeneration;
  return static_cast<int>(1 + generation % (kBases - 1)) *
         kCommunicatorsPerGeneration;
}

// The number within its membership.
constexpr int LocalCommunicatorId(int id) {
  return id % kCommunicatorsPerGeneration;
}

// Whether the number is meant for the membership with this base.
constexpr bool IsOfMembership(int id, int base) {
  return id - LocalCommunicatorId(id) == base ||
         id < kCommunicatorsPerGeneration;
}

}  // namespace ring_keras

#endif  // RING_KERAS_RUNTIME_COMMUNICATOR_ID_H_
