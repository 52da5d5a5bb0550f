// Ranges in the timelines of NVIDIA's profilers, by NVTX.
#ifndef RING_KERAS_CUDA_RANGES_H_
#define RING_KERAS_CUDA_RANGES_H_

#include <cstdint>
#include <string>

namespace ring_keras::cuda {

// Has ranges shown from now on, if NVTX is there; else none ever is.
void ShowRanges();

// One of them. It ends with this object at the latest; threads may end what
// others have begun.
class Range {
 public:
  Range() = default;
  ~Range() { End(); }
  Range(const Range&) = delete;
  Range& operator=(const Range&) = delete;

  // Whether any are shown; to ask costs next to nothing.
  static bool AreShown();

  // If they are. What it began before ends.
  void Begin(const std::string& title);
  void End() {
    if (begun_) Finish();
  }

 private:
  void Finish();

  bool begun_ = false;
  uint64_t number_ = 0;
};

}  // namespace ring_keras::cuda

#endif  // RING_KERAS_CUDA_RANGES_H_
