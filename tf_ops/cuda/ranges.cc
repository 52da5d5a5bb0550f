#include "tf_ops/cuda/ranges.h"

#include <atomic>

#include "tf_ops/cuda/library_paths.h"

namespace ring_keras::cuda {
namespace {

// Functions are named as in libnvToolsExt, without their "nvtx".
struct NvtxApi {
  uint64_t (*RangeStartA)(const char* message);
  void (*RangeEnd)(uint64_t range);
};

std::atomic<const NvtxApi*> shown{nullptr};

const NvtxApi* LoadNvtx() {
  const StatusOr<void*> handle = OpenLibrary(kNvtxLibrary);
  if (!handle.ok()) return nullptr;
  static NvtxApi api;
  Symbols symbols(kNvtxLibrary, handle.value());
  symbols.Find("nvtxRangeStartA", &api.RangeStartA);
  symbols.Find("nvtxRangeEnd", &api.RangeEnd);
  return symbols.status().ok() ? &api : nullptr;
}

}  // namespace

void ShowRanges() {
  static const NvtxApi* const api = LoadNvtx();
  shown.store(api);
}

bool Range::AreShown() {
  return shown.load(std::memory_order_relaxed) != nullptr;
}

void Range::Begin(const std::string& title) {
  End();
  number_ = shown.load()->RangeStartA(title.c_str());
  begun_ = true;
}

void Range::Finish() {
  begun_ = false;
  shown.load()->RangeEnd(number_);
}

}  // namespace ring_keras::cuda
