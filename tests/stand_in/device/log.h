// What was launched, for tests to read.
#ifndef RING_KERAS_TESTS_STAND_IN_DEVICE_LOG_H_
#define RING_KERAS_TESTS_STAND_IN_DEVICE_LOG_H_

#include <string>

#include "tf_ops/common/export.h"

namespace ring_keras::stand_in {

RING_KERAS_EXPORT void Log(const std::string& line);

}  // namespace ring_keras::stand_in

#endif  // RING_KERAS_TESTS_STAND_IN_DEVICE_LOG_H_
