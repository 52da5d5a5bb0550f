// The launch thread's part of a communicator: it alone connects it, gives its
// device something to do, and closes it.
//
// Nothing here blocks: NCCL says "in progress" and is asked again, in
// coroutines. Between two steps of one the communicator may break; every call
// of NCCL's goes through Call(), which looks again, under the mutex without
// which nobody aborts.
#include <cstring>

#include "tf_ops/collectives/nccl/device_communicator.h"
#include "tf_ops/collectives/nccl/launcher.h"
#include "tf_ops/common/deadline.h"
#include "tf_ops/common/logging.h"

namespace ring_keras::nccl {
namespace {

// NCCL's communicators are closed together; a rank that goes on alone is not
// waited for.
constexpr double kCloseTimeoutS = 5.0;

}  // namespace

template <typename Function>
Status DeviceCommunicator::Call(const char* what, Function function) {
  std::lock_guard<std::mutex> lock(handle_mutex_);
  if (broken()) return status();
  const int result = function();
  if (result == kInProgress) return Status::Ok();
  return ToStatus(result, what, handle_);
}

template <typename Condition>
auto DeviceCommunicator::Until(Condition condition) {
  auto either = [this, condition = std::move(condition)]() mutable {
    return broken() || condition();
  };
  return Scheduler::Until<decltype(either)>(launcher_.scheduler(),
                                            std::move(either));
}

Task DeviceCommunicator::Connect(std::string unique_id) {
  if (broken()) co_return status();
  // Prepare() chose it in another thread; this one has its own current device.
  RING_KERAS_CO_RETURN_IF_ERROR(
      cuda::ToStatus(cuda::GetRuntime().value()->SetDevice(device_),
                     "making a communicator's device current"));
  const StatusOr<StreamHandle> stream = launcher_.StreamOf(device_);
  RING_KERAS_CO_RETURN_IF_ERROR(stream.status());
  stream_ = stream.value();
  if (size_ == 1 || connected()) co_return Status::Ok();
  UniqueId id;
  if (unique_id.size() != sizeof(id.bytes)) {
    co_return Status(
        StatusCode::kInternal,
        StrCat("expected a unique id of NCCL's of ", sizeof(id.bytes),
               " bytes from the first rank, got ", unique_id.size()));
  }
  std::memcpy(id.bytes, unique_id.data(), sizeof(id.bytes));
  constexpr char kWhat[] = "connecting a communicator";
  RING_KERAS_CO_RETURN_IF_ERROR(Call(kWhat, [&] {
    Config config;
    return api_->CommInitRankConfig(&handle_, size_, id, rank_, &config);
  }));
  Task settled = Settle(kWhat);
  RING_KERAS_CO_RETURN_IF_ERROR(co_await settled);
  std::lock_guard<std::mutex> lock(mutex_);
  connected_ = true;
  co_return Status::Ok();
}

Task DeviceCommunicator::Split(DeviceCommunicator* part) {
  constexpr char kWhat[] = "splitting a communicator";
  RING_KERAS_CO_RETURN_IF_ERROR(Call(kWhat, [&] {
    Config config;
    split_off_ = nullptr;
    return api_->CommSplit(handle_, part == nullptr ? kNoColor : 0, rank_,
                           &split_off_, &config);
  }));
  Task settled = Settle(kWhat);
  RING_KERAS_CO_RETURN_IF_ERROR(co_await settled);
  if (part == nullptr) co_return Status::Ok();
  {
    std::lock_guard<std::mutex> lock(part->handle_mutex_);
    part->handle_ = std::exchange(split_off_, nullptr);
  }
  part->api_ = api_;
  part->device_ = device_.load();
  Task part_settled = part->Settle(kWhat);
  RING_KERAS_CO_RETURN_IF_ERROR(co_await part_settled);
  std::lock_guard<std::mutex> lock(part->mutex_);
  part->connected_ = true;
  co_return Status::Ok();
}

Task DeviceCommunicator::Issue(const char* what,
                               std::function<void(Calls&)> calls) {
  RING_KERAS_CO_RETURN_IF_ERROR(Call(what, [&] {
    if (const int result = api_->GroupStart(); result != kSuccess) {
      return result;
    }
    Calls group(*api_, handle_, stream());
    calls(group);
    const int result = api_->GroupEnd();
    return group.result() == kSuccess ? result : group.result();
  }));
  Task settled = Settle(what);
  co_return co_await settled;
}

Task DeviceCommunicator::Settle(const char* what) {
  int result = kInProgress;
  co_await Until([this, &result] {
    result = AsyncError();
    return result != kInProgress;
  });
  if (broken()) co_return status();
  co_return ToStatus(result, what, nullptr);
}

StatusOr<char*> DeviceCommunicator::GetBuffer() {
  if (buffer_ == nullptr) {
    std::lock_guard<std::mutex> lock(handle_mutex_);
    if (broken()) return status();
    auto buffer = FusionBuffer::Create(*api_, handle_, stream());
    RING_KERAS_RETURN_IF_ERROR(buffer.status());
    buffer_ = std::move(buffer.value());
  }
  return buffer_->data();
}

StatusOr<int> DeviceCommunicator::MakeScaledSum(DataType dtype, double scale) {
  int op = kSum;
  RING_KERAS_RETURN_IF_ERROR(Call("making a reduction op", [&] {
    float narrow = static_cast<float>(scale);
    return api_->RedOpCreatePreMulSum(
        &op, dtype == DataType::kFloat64 ? static_cast<void*>(&scale) : &narrow,
        *NumberOf(dtype), kScalarOnHost, handle_);
  }));
  return op;
}

void DeviceCommunicator::DropScaledSum(int op) {
  (void)Call("dropping a reduction op",
             [&] { return api_->RedOpDestroy(op, handle_); });
}

Task DeviceCommunicator::Close() {
  if (device_ != kNoDevice) {
    cuda::GetRuntime().value()->SetDevice(device_);
  }
  if (connected() && !broken()) {
    if (buffer_ != nullptr) {
      std::lock_guard<std::mutex> lock(handle_mutex_);
      if (!broken()) buffer_->Deregister(handle_);
    }
    constexpr char kWhat[] = "closing a communicator";
    Status closed = Call(kWhat, [&] { return api_->CommFinalize(handle_); });
    int state = kInProgress;
    const Deadline deadline = Deadline::After(kCloseTimeoutS);
    co_await Until([&] {
      state = AsyncError();
      return state != kInProgress || deadline.Expired();
    });
    if (closed.ok() && state == kSuccess && !broken()) {
      closed = Call(kWhat, [&] {
        return api_->CommDestroy(std::exchange(handle_, nullptr));
      });
    } else {
      Log(LogLevel::kDebug, "NCCL: a communicator is closed without its peers");
      Break(Status(StatusCode::kAborted, "the communicator is closed"));
    }
  }
  if (broken()) {
    co_await Scheduler::Until(launcher_.scheduler(),
                              [this] { return aborted(); });
  }
  buffer_.reset();
  co_return Status::Ok();
}

}  // namespace ring_keras::nccl
