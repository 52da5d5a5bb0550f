// The codes that errors and warnings carry: `[RK302]` before the message.
//
// docs/troubleshooting.md has an entry for each, which says what it means and
// how to mend it; tests/unit/test_error_codes.py compares the two. Python's own
// codes are written where they are raised. A number is never given to another
// cause, even when the first is gone (docs/design/0036-error-codes.md).
#ifndef RING_KERAS_COMMON_ERROR_CODE_H_
#define RING_KERAS_COMMON_ERROR_CODE_H_

#include <string>

#include "tf_ops/common/export.h"

namespace ring_keras {

enum class ErrorCode : int {
  kNone = 0,

  // Starting, and finding each other.
  kNotInitialized = 101,
  kForkedProcess = 102,
  kPastGeneration = 103,
  kAlreadyInitialized = 104,
  kRankMissing = 110,
  kStoreUnreachable = 111,
  kNotAdmitted = 112,
  kRankUnreachable = 113,
  kNoCommonNetwork = 114,
  kNoSuchInterface = 115,
  kOtherVersion = 116,
  kSettingDiffers = 117,
  kFewerNetworks = 118,
  kTooFewDescriptors = 130,
  kNoThread = 131,
  kNoSharedMemory = 132,
  kConnectionDropped = 133,
  kNoDump = 134,
  kCalledInWait = 135,
  kForkWithoutCopies = 136,
  kNoMpi = 150,
  kMpiUnusable = 151,
  kNoTransportLibrary = 152,

  // Ranks that were lost, or do not come.
  kRankLost = 201,
  kRankLeft = 202,
  kRankGaveUp = 203,
  kLinkBroken = 204,
  kStoreGone = 205,
  kCollectiveTimeout = 206,
  kStalled = 207,
  kShutDown = 208,
  kInterrupted = 209,
  kChangedOnItsWay = 210,

  // Ranks that disagree.
  kKindDiffers = 301,
  kShapeDiffers = 302,
  kDtypeDiffers = 303,
  kReduceOpDiffers = 304,
  kRootDiffers = 305,
  kMemoryDiffers = 306,
  kScaleDiffers = 307,
  kCompressionDiffers = 308,
  kTensorCountDiffers = 309,
  kCannotTakePart = 310,
  kPlanDiffers = 311,
  kStepDiffers = 312,
  kRowsDiffer = 313,
  kProcessSetsDiffer = 314,

  // Arguments, and how the library is used.
  kBadArgument = 401,
  kIntegerAverage = 402,
  kNoSuchReduction = 403,
  kBadSplits = 404,
  kBadCompression = 405,
  kBadProcessSet = 406,
  kInJoin = 407,
  kTooManyTensors = 408,

  // Data.
  kCorruptData = 501,

  // Libraries that ring_keras opens.
  kNoLibrary = 702,
  kNcclFailed = 703,
  kNoOpenSsl = 704,
  kReducedOnHost = 705,

  // Meetings of ranks that train apart.
  kNothingDeparted = 820,

  // The system, and defects of ours.
  kSystemFailed = 901,
  kOutOfMemory = 902,
};

// As messages begin: "[RK302] ".
RING_KERAS_EXPORT std::string Prefix(ErrorCode code);

// Takes what Prefix() makes from the start of `message`. kNone, and `message`
// as it is, if it begins with none.
ErrorCode TakePrefix(std::string* message);

}  // namespace ring_keras

#endif  // RING_KERAS_COMMON_ERROR_CODE_H_
