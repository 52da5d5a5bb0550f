// What is known of one collective of this rank's.
#ifndef RING_KERAS_MONITORING_COLLECTIVE_RECORD_H_
#define RING_KERAS_MONITORING_COLLECTIVE_RECORD_H_

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>

#include "tf_ops/common/collective_kind.h"
#include "tf_ops/common/status.h"
#include "tf_ops/common/ticks.h"

namespace ring_keras {

// How the collective was carried out.
struct AlgorithmName {
  uint8_t number = 0;  // Below kAlgorithmCount, different for each kind.
  const char* name = "none";
};
constexpr int kAlgorithmCount = 64;

// The moments are in ascending order, but for `awaited_at`; what has not
// happened is 0. docs/design/0021 says where each is stamped.
struct CollectiveRecord {
  static constexpr size_t kNameBytes = 80;

  uint64_t number = 0;  // Among this rank's, from 1; 0: there is none.
  uint64_t step = 0;    // 0: in none.
  uint64_t nbytes = 0;  // Of this rank's tensors.

  Ticks submitted_at = 0;   // The program handed it over.
  Ticks arrived_at = 0;     // Its peers can see that this rank is there.
  Ticks matched_at = 0;     // The last rank was there.
  Ticks first_byte_at = 0;  // This rank began to exchange data.
  Ticks last_byte_at = 0;   // It had them all.
  Ticks done_at = 0;        // The program was told.
  Ticks awaited_at = 0;     // Since then the program stood still for it.
  // Until when; on a GPU the program goes on before the collective is done.
  Ticks released_at = 0;

  int32_t communicator_id = 0;
  int32_t size = 0;        // Ranks of the communicator.
  int32_t last_rank = -1;  // The job's number of who came last; -1: unknown.
  CollectiveKind kind = CollectiveKind::kBarrier;
  StatusCode outcome = StatusCode::kOk;  // Once done_at is not 0.
  AlgorithmName algorithm;
  // Up to its end, which is all that costs anything in every collective.
  char name[kNameBytes];

  CollectiveRecord() { name[0] = '\0'; }

  // Of a long name the end, which tells it from others like it.
  void SetName(const std::string& full) {
    const size_t length = std::min(full.size(), kNameBytes - 1);
    // Not memcpy: as the length has a bound, GCC would make `rep movs` of it,
    // which takes 10 to 30 ns to get going.
    std::memmove(name, full.data() + (full.size() - length), length);
    name[length] = '\0';
  }
  bool ended() const { return done_at != 0; }
};

}  // namespace ring_keras

#endif  // RING_KERAS_MONITORING_COLLECTIVE_RECORD_H_
