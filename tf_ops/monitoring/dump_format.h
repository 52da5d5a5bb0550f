// What a rank writes down of its collectives: lines of JSON.
#ifndef RING_KERAS_MONITORING_DUMP_FORMAT_H_
#define RING_KERAS_MONITORING_DUMP_FORMAT_H_

#include <string>
#include <vector>

#include "tf_ops/common/export.h"
#include "tf_ops/monitoring/collective_record.h"

namespace ring_keras {

// In a word: "ok", "pending", or how it failed.
RING_KERAS_EXPORT const char* OutcomeName(const CollectiveRecord& record);

// A string of JSON, with its quotes.
std::string JsonText(const std::string& text);

// A list of JSON.
std::string JsonNumbers(const std::vector<int>& numbers);

// The members of an object, without its braces.
std::string JsonMembers(const CollectiveRecord& record, const TickScale& scale);

}  // namespace ring_keras

#endif  // RING_KERAS_MONITORING_DUMP_FORMAT_H_
