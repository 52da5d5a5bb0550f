#include "tests/stand_in/nccl/group.h"

#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "tests/stand_in/device/device.h"
#include "tests/stand_in/device/log.h"
#include "tests/stand_in/device/stream.h"
#include "tests/stand_in/nccl/device_room.h"

namespace ring_keras::stand_in {
namespace {

// What one communicator does in one group.
struct Launch {
  std::shared_ptr<Communicator> communicator;
  std::shared_ptr<Stream> stream;
  std::vector<Call> calls;
};

struct Group {
  int depth = 0;
  int error = kNcclSuccess;
  std::vector<Launch> launches;
};

thread_local Group group;

void LogCalls(const Launch& launch) {
  for (const Call& call : launch.calls) {
    char line[160];
    std::snprintf(line, sizeof(line), "nccl %016llx %s %zu %s %d %d",
                  static_cast<unsigned long long>(launch.communicator->id()),
                  NameOf(call.kind), call.count, ElementName(call.dtype),
                  call.is_pre_mul_sum ? int{kNcclFirstCustomOp} : call.op,
                  call.root);
    Log(line);
  }
}

void Enqueue(const Launch& launch) {
  launch.communicator->BeginWork();
  launch.stream->Enqueue(
      [communicator = launch.communicator, calls = launch.calls] {
        DeviceRoom& room = DeviceRoom::Of(communicator->device());
        if (room.Take([&] { return communicator->aborted(); })) {
          Perform(*communicator, calls);
          room.Give();
        }
        communicator->EndWork();
      });
}

int Start(const Launch& launch) {
  LogCalls(launch);
  Communicator& communicator = *launch.communicator;
  bool connects = false;
  for (const Call& call : launch.calls) {
    std::string kind = NameOf(call.kind);
    if (IsPointToPoint(call.kind)) kind += std::to_string(call.root);
    if (communicator.IsFirstOfItsKind(kind)) connects = true;
  }
  // A communicator that does not block has then not even launched when the
  // call returns: an event recorded now comes too early.
  if (connects && !communicator.blocking()) {
    return communicator.Run([launch] {
      Enqueue(launch);
      return int{kNcclSuccess};
    });
  }
  Enqueue(launch);
  return kNcclSuccess;
}

}  // namespace

void StartGroup() { ++group.depth; }

int EndGroup() {
  if (group.depth == 0) return kNcclInvalidUsage;
  if (--group.depth > 0) return kNcclSuccess;
  const Group ended = std::exchange(group, Group());
  if (ended.error != kNcclSuccess) return ended.error;
  int result = kNcclSuccess;
  for (const Launch& launch : ended.launches) {
    const int started = Start(launch);
    if (started != kNcclSuccess) result = started;
  }
  return result;
}

int AddCall(std::shared_ptr<Communicator> communicator, void* stream,
            const Call& call) {
  // The default stream is that of the communicator's device.
  const int current = CurrentDevice();
  SetCurrentDevice(communicator->device());
  const auto found = FindStream(stream);
  SetCurrentDevice(current);
  StartGroup();
  if (found == nullptr || found->device() != communicator->device()) {
    communicator->Fail(kNcclUnhandledCudaError,
                       "Cuda failure 'invalid resource handle'");
    group.error = kNcclUnhandledCudaError;
    return EndGroup();
  }
  for (Launch& launch : group.launches) {
    if (launch.communicator != communicator) continue;
    if (launch.stream != found) group.error = kNcclInvalidUsage;
    launch.calls.push_back(call);
    return EndGroup();
  }
  group.launches.push_back({std::move(communicator), found, {call}});
  return EndGroup();
}

}  // namespace ring_keras::stand_in
