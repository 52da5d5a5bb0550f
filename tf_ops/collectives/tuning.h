// Up to how many bytes which algorithm runs: the same on every rank of a job.
//
// Ranks pick an algorithm each for itself, so a rank with another threshold
// would talk past its peers. Bootstrap() therefore compares the ranks'
// settings.
#ifndef RING_KERAS_COLLECTIVES_TUNING_H_
#define RING_KERAS_COLLECTIVES_TUNING_H_

#include <algorithm>
#include <array>
#include <cstddef>
#include <optional>

#include "tf_ops/transport/transport.h"

namespace ring_keras {

// What has been set; the others depend on how many ranks there are.
struct Tuning {
  std::optional<size_t> shared_flat_max_bytes;
  std::optional<size_t> direct_max_bytes;
  std::optional<size_t> recursive_doubling_max_bytes;
  std::optional<size_t> parts_max_bytes;
  std::optional<size_t> halving_max_bytes;
  std::optional<size_t> trees_max_bytes;
};

// Every setting with its name in Python; RING_KERAS_<NAME> in the environment.
struct TuningSetting {
  const char* name;
  std::optional<size_t> Tuning::* value;
};
inline constexpr std::array<TuningSetting, 6> kTuningSettings = {{
    {"shared_flat_max_bytes", &Tuning::shared_flat_max_bytes},
    {"direct_max_bytes", &Tuning::direct_max_bytes},
    {"recursive_doubling_max_bytes", &Tuning::recursive_doubling_max_bytes},
    {"parts_max_bytes", &Tuning::parts_max_bytes},
    {"halving_max_bytes", &Tuning::halving_max_bytes},
    {"trees_max_bytes", &Tuning::trees_max_bytes},
}};

// What holds among so many ranks. Bytes count all tensors of one allreduce
// together. Below a threshold, fewer synchronisations or messages win over
// fewer bytes.
struct Thresholds {
  // `message_nbytes`: of the transport between them (transport.h).
  Thresholds(const Tuning& tuning, size_t ranks,
             size_t message_nbytes = Transport::kMessageBytes)
      : shared_flat_max_bytes(
            tuning.shared_flat_max_bytes.value_or(size_t{16} << 10)),
        direct_max_bytes(tuning.direct_max_bytes.value_or(
            std::min(size_t{4} << 10, (size_t{1} << 20) / ranks))),
        recursive_doubling_max_bytes(
            tuning.recursive_doubling_max_bytes.value_or(
                ranks == 2 && message_nbytes > Transport::kMessageBytes
                    ? message_nbytes
                : ranks <= kDoublingMaxRanks ? size_t{16} << 10
                                             : 0)),
        parts_max_bytes(tuning.parts_max_bytes.value_or(
            ranks <= kPartsMaxRanks ? size_t{1} << 20 : 0)),
        halving_max_bytes(tuning.halving_max_bytes.value_or(
            // With shorter messages a ring's many trips are what takes its
            // time.
            ranks <= kPartsMaxRanks ? 0 : Transport::kMessageBytes * ranks)),
        trees_max_bytes(tuning.trees_max_bytes.value_or(0)) {}

  // One host, three ranks or more: every rank reduces everything. Above, each
  // reduces a part.
  size_t shared_flat_max_bytes;
  // Across hosts: all to all, with the announcements, which hold 64 KiB.
  size_t direct_max_bytes;
  // Across hosts with one rank each, above direct_max_bytes: recursive
  // doubling.
  size_t recursive_doubling_max_bytes;
  // The same, above both: each rank reduces a part that all send it.
  size_t parts_max_bytes;
  // The same, above all three: recursive halving.
  size_t halving_max_bytes;
  // The same, above all four: two binary trees. Where every member reaches any
  // other as fast, halving is never slower. Above, a ring moves no more than
  // the links carry, and only between neighbours.
  size_t trees_max_bytes;

 private:
  // Two send each other as many bytes by any algorithm, by this one in one
  // trip, which counts where each message costs much. With more than two it
  // needs connections that halving does not.
  static constexpr size_t kDoublingMaxRanks = 128;
  // Each sends a message to each of the others, which all arrive at once.
  static constexpr size_t kPartsMaxRanks = 8;
};

// How much of `nbytes` each of so many ranks sends another at a time when each
// piece of them is shared among all, and messages are best
// `transport_message_nbytes` long: whole elements of any type. Beyond 128 KiB
// there are two pieces, so that one goes on while the other waits, of 16 MiB at
// most: several have memory of their own at a time.
inline size_t MessageBytes(size_t nbytes, size_t ranks,
                           size_t transport_message_nbytes) {
  constexpr size_t kLeastPieces = 2;
  constexpr size_t kMostPieceBytes = size_t{16} << 20;
  constexpr size_t kMultiple = 64;
  const size_t wanted =
      std::min({(nbytes + ranks * kLeastPieces - 1) / (ranks * kLeastPieces),
                kMostPieceBytes / ranks, transport_message_nbytes});
  return std::max(Transport::kMessageBytes,
                  (wanted + kMultiple - 1) / kMultiple * kMultiple);
}

}  // namespace ring_keras

#endif  // RING_KERAS_COLLECTIVES_TUNING_H_
