// The events that cudaEventCreate made.
#ifndef RING_KERAS_TESTS_STAND_IN_RUNTIME_EVENTS_H_
#define RING_KERAS_TESTS_STAND_IN_RUNTIME_EVENTS_H_

#include "tests/stand_in/device/event.h"
#include "tests/stand_in/device/registry.h"

namespace ring_keras::stand_in {

Registry<Event>& Events();

}  // namespace ring_keras::stand_in

#endif  // RING_KERAS_TESTS_STAND_IN_RUNTIME_EVENTS_H_
