// How the ranks' announcements of one collective differ, in words.
#ifndef RING_KERAS_MATCHING_MISMATCH_H_
#define RING_KERAS_MATCHING_MISMATCH_H_

#include <optional>
#include <vector>

#include "tf_ops/common/status.h"
#include "tf_ops/matching/announcement.h"

namespace ring_keras {

// Compares the announcements of all ranks, none of which is empty. RankMismatch
// if they differ: its text names the tensor, two ranks and both values, and is
// the same on every rank.
// First dimensions may differ in an allgather and an alltoall, unless a rank
// wants even rows.
//
// `ranks` are the job's numbers of the announcements' ranks.
Status FindMismatch(
    const std::vector<std::optional<Announcement>>& announcements,
    const std::vector<int>& ranks);

}  // namespace ring_keras

#endif  // RING_KERAS_MATCHING_MISMATCH_H_
