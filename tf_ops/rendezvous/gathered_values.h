// The values of all ranks as one text, in which what neighbours have in common
// is written once: cards of ranks of one host differ in little.
#ifndef RING_KERAS_RENDEZVOUS_GATHERED_VALUES_H_
#define RING_KERAS_RENDEZVOUS_GATHERED_VALUES_H_

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "tf_ops/common/status.h"

namespace ring_keras::rendezvous {

std::string EncodeValues(const std::vector<std::string>& values);

// InvalidArgument: these are not `count` values, or more bytes than the store
// gathers.
StatusOr<std::vector<std::string>> DecodeValues(std::string_view text,
                                                size_t count);

}  // namespace ring_keras::rendezvous

#endif  // RING_KERAS_RENDEZVOUS_GATHERED_VALUES_H_
