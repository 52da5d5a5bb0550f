#include "tf_ops/runtime/departed_calls.h"

#include <new>
#include <utility>

namespace ring_keras {

// Until the engine has done with it, and nobody wants the results any more.
struct DepartedCall::Memory {
  using Block = std::unique_ptr<char[]>;

  // Null, and an error, without memory: nobody above catches what is thrown.
  static StatusOr<Block> Allocate(size_t nbytes) {
    Block block(new (std::nothrow) char[nbytes]);
    if (block == nullptr) {
      return Status(StatusCode::kResourceExhausted,
                    StrCat("no memory for a copy of ", nbytes, " bytes"));
    }
    return block;
  }

  std::vector<Block> blocks;
  std::vector<Result> results;
};

std::shared_ptr<DepartedCall> DepartedCall::Submit(Request request,
                                                   const CopyBytes& copy) {
  auto departed = std::make_shared<DepartedCall>();
  auto memory = std::make_shared<Memory>();
  departed->memory_ = memory;
  const size_t itemsize = SizeOf(request.dtype);
  request.departs = true;
  const bool in_place = request.kind == CollectiveKind::kAllreduce;
  for (TensorView& input : request.inputs) {
    const size_t nbytes = ElementCount(input.shape) * itemsize;
    auto block = Memory::Allocate(nbytes);
    Status copied = block.status();
    char* data = nullptr;
    if (block.ok()) {
      data = block.value().get();
      copied = copy(data, input.data, nbytes);
      memory->blocks.push_back(std::move(block.value()));
    }
    // The peers wait for this rank.
    if (!copied.ok() && request.able.ok()) request.able = copied;
    input.data = data;
    if (in_place) {
      request.outputs.push_back(data);
      memory->results.push_back({data, nbytes});
    }
  }
  if (!in_place) {
    request.even_rows = true;
    request.allocate_output =
        [memory, itemsize](const Shape& shape) -> StatusOr<void*> {
      const size_t nbytes = ElementCount(shape) * itemsize;
      auto block = Memory::Allocate(nbytes);
      RING_KERAS_RETURN_IF_ERROR(block.status());
      char* const data = block.value().get();
      memory->blocks.push_back(std::move(block.value()));
      memory->results.push_back({data, nbytes});
      return data;
    };
  }
  departed->call_ = SubmittedCall::Submit(std::move(request), 0, memory);
  return departed;
}

std::vector<DepartedCall::Result> DepartedCall::Results() const {
  return memory_->results;
}

DepartedCalls& DepartedCalls::Get() {
  static DepartedCalls* calls = new DepartedCalls;
  return *calls;
}

int64_t DepartedCalls::NewSlot() {
  std::lock_guard<std::mutex> lock(mutex_);
  return ++last_slot_;
}

void DepartedCalls::Put(int64_t slot, std::shared_ptr<DepartedCall> call) {
  std::lock_guard<std::mutex> lock(mutex_);
  calls_[slot].swap(call);
}

std::shared_ptr<DepartedCall> DepartedCalls::Take(int64_t slot) {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto found = calls_.find(slot);
  if (found == calls_.end()) return nullptr;
  std::shared_ptr<DepartedCall> call = std::move(found->second);
  calls_.erase(found);
  return call;
}

}  // namespace ring_keras
