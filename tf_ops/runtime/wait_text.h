// What operations wait for, in words.
#ifndef RING_KERAS_RUNTIME_WAIT_TEXT_H_
#define RING_KERAS_RUNTIME_WAIT_TEXT_H_

#include <string>
#include <vector>

#include "tf_ops/runtime/active_operations.h"
#include "tf_ops/runtime/matcher.h"
#include "tf_ops/runtime/operation.h"
#include "tf_ops/runtime/shared_state.h"

namespace ring_keras {

// "rank 3", "ranks 0 and 3"; of thousands, some.
std::string JoinRanks(const std::vector<int>& ranks);

// What holds the operation up, as in "rank 1 of 4".
std::string DescribeWait(const Operation& operation,
                         const ActiveOperations& all);

// A warning about an operation that has waited for `age_s` seconds: whom it
// waits for, and where these wait for this rank. With the driver; the caller
// does not hold the engine's mutex.
std::string DescribeStall(const Operation& operation, double age_s,
                          const ActiveOperations& all, const Matcher& matcher,
                          const SharedState& shared);

// The same for the ranks that it waits for, each of which reads "this rank".
std::string DescribeAwaited(const Operation& operation, double age_s);

// How the user learns more than such a warning tells.
std::string DescribeWayToSee(const std::string& trace_dir);

// Why it is given up after `age_s` seconds; all ranks are told so.
std::string DescribeGivingUp(const Operation& operation, double age_s,
                             const ActiveOperations& all,
                             const Matcher& matcher, const SharedState& shared);

}  // namespace ring_keras

#endif  // RING_KERAS_RUNTIME_WAIT_TEXT_H_
