// A GPU and its libraries on host memory, for tests on machines without one.
//
// libcudart.so.12, libcuda.so.1, libnvrtc.so.12 and libnccl.so.2 as this folder
// builds them export the part of the vendors' C ABI that ring_keras uses, and
// keep its semantics:
//   - a stream is a queue with a thread of its own; nothing is done when a call
//     returns, and streams are ordered by events alone;
//   - the current device is each thread's own;
//   - freed memory cannot be touched any more: whoever does is told so and the
//     process ends;
//   - a kernel is the text given to NVRTC, compiled for the host beforehand;
//   - while a graph is captured, threads that have not asked to be left alone
//     are told that their call is not allowed;
//   - NCCL runs between processes and between threads, pairs calls by their
//     order alone, waits for ever where orders differ, where some ranks bring
//     registered memory and others do not, or a peer is gone, and
//     ends that wait on ncclCommAbort only.
// They link to this library, libring_keras_stand_in.so, which holds the
// devices. What follows is for tests; the vendors' libraries have nothing like
// it.
//
// Environment, read at first use:
//   STAND_IN_DEVICES    how many devices there are, 4 unless set;
//                       CUDA_VISIBLE_DEVICES picks among them
//   STAND_IN_JITTER_US  a random time up to this many microseconds passes
//                       before each piece of a stream's work
//   STAND_IN_NCCL_KERNELS  how many of NCCL's groups, of whatever
//   communicators,
//                       a device has room for at a time; unlimited unless set.
//                       The others wait in their streams
//   STAND_IN_DEAD_PEER  "error": a communicator notices that a peer's process
//                       ended (ncclRemoteError), as NCCL does across hosts;
//                       "hang", the default: it does not
//   STAND_IN_NO_PEER    pairs of devices of which the first cannot reach the
//                       second's memory, as "0-1,1-0"; none unless set
#ifndef RING_KERAS_TESTS_STAND_IN_STAND_IN_H_
#define RING_KERAS_TESTS_STAND_IN_STAND_IN_H_

#include <stdint.h>

#include "tf_ops/common/export.h"

extern "C" {

// Makes the stream's later work wait until the gate is opened.
RING_KERAS_EXPORT void* RingKerasStandInHold(void* stream);
RING_KERAS_EXPORT void RingKerasStandInOpen(void* gate);

// Takes device memory back at once, as a framework's allocator does that gives
// it to another tensor, while the device may still have work queued for it.
// cudaFree waits for the device, so it hides such a mistake.
RING_KERAS_EXPORT int RingKerasStandInTakeBack(void* memory);

// From now on calls that ask about finished work return this error, as after a
// fault on the device; 0 ends that.
RING_KERAS_EXPORT void RingKerasStandInFailDevice(int error);

// From now on, until `capturing` is 0, it is as if a thread captured a graph in
// CUDA's global mode: what other threads ask about events is an error.
RING_KERAS_EXPORT void RingKerasStandInCapture(int capturing);

// Gives every communicator of this process this asynchronous error.
RING_KERAS_EXPORT void RingKerasStandInFailCommunicators(int error);

// What is alive in this process.
RING_KERAS_EXPORT int64_t RingKerasStandInAllocations();
RING_KERAS_EXPORT int64_t RingKerasStandInStreams();
RING_KERAS_EXPORT int64_t RingKerasStandInEvents();
RING_KERAS_EXPORT int64_t RingKerasStandInCommunicators();
RING_KERAS_EXPORT int64_t RingKerasStandInRegistrations();

// Communicators of this process that wait for ever because ranks' calls differ.
RING_KERAS_EXPORT int64_t RingKerasStandInHanging();

// What this process launched, one line each, in the order of the calls:
//   "kernel NAME"
//   "nccl COMMUNICATOR NAME count dtype op root"
//   "init size rank"
//   "split color key"
// COMMUNICATOR is the same on every rank. The text lives until the calling
// thread's next call.
RING_KERAS_EXPORT const char* RingKerasStandInLog();
RING_KERAS_EXPORT void RingKerasStandInClearLog();
}

#endif  // RING_KERAS_TESTS_STAND_IN_STAND_IN_H_
