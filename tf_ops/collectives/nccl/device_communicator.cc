#include "tf_ops/collectives/nccl/device_communicator.h"

#include "tf_ops/collectives/nccl/launcher.h"
#include "tf_ops/cuda/pack.h"

namespace ring_keras::nccl {
namespace {

bool Reduces(CollectiveKind kind) {
  return kind == CollectiveKind::kAllreduce ||
         kind == CollectiveKind::kReduceScatter;
}

}  // namespace

DeviceCommunicator::DeviceCommunicator(Launcher& launcher, int rank, int size)
    : launcher_(launcher), rank_(rank), size_(size) {}

Status DeviceCommunicator::Prepare(const CollectiveArguments& arguments) {
  const int device = arguments.device_work->device();
  std::lock_guard<std::mutex> lock(prepare_mutex_);
  if (device_ != kNoDevice && device_ != device) {
    return Status(StatusCode::kInvalidArgument,
                  StrCat("this rank's tensors have been on GPU ",
                         device_.load(), " so far, these are on GPU ", device,
                         ". Use one GPU per rank."));
  }
  if (size_ > 1 && api_ == nullptr) {
    StatusOr<const Api*> api = GetApi();
    RING_KERAS_RETURN_IF_ERROR(api.status());
    if (rank_ == 0) {
      UniqueId id;
      RING_KERAS_RETURN_IF_ERROR(ToStatus(api.value()->GetUniqueId(&id),
                                          "making a communicator's unique id",
                                          nullptr));
      std::lock_guard<std::mutex> id_lock(mutex_);
      unique_id_.assign(id.bytes, sizeof(id.bytes));
    }
    api_ = api.value();
  }
  if (Reduces(arguments.kind) && !has_kernels_) {
    RING_KERAS_RETURN_IF_ERROR(cuda::PrepareDevice(device));
    has_kernels_ = true;
  }
  if (device_ == kNoDevice) device_ = device;
  launcher_.Start();
  return Status::Ok();
}

std::string DeviceCommunicator::IdForPeers() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return connected_ ? std::string() : unique_id_;
}

void DeviceCommunicator::Break(const Status& why) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!status_.ok()) return;
    status_ = why;
  }
  broken_.store(true);
  launcher_.Abort(shared_from_this());
}

Status DeviceCommunicator::status() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return status_;
}

bool DeviceCommunicator::connected() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return connected_;
}

}  // namespace ring_keras::nccl
