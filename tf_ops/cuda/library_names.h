// NVIDIA's libraries by name.
#ifndef RING_KERAS_CUDA_LIBRARY_NAMES_H_
#define RING_KERAS_CUDA_LIBRARY_NAMES_H_

#include <span>

namespace ring_keras::cuda {

// For messages and for the search.
struct LibraryName {
  const char* title;                     // "the CUDA runtime"
  std::span<const char* const> sonames;  // The first is preferred.
  const char* pip_package;  // Where users get it; null: with the driver.
};

inline constexpr const char* kDriverSonames[] = {"libcuda.so.1"};
inline constexpr LibraryName kDriverLibrary = {"the CUDA driver",
                                               kDriverSonames, nullptr};

inline constexpr const char* kRuntimeSonames[] = {"libcudart.so.12",
                                                  "libcudart.so.13"};
inline constexpr LibraryName kRuntimeLibrary = {
    "the CUDA runtime", kRuntimeSonames, "nvidia-cuda-runtime-cu12"};

inline constexpr const char* kNvrtcSonames[] = {"libnvrtc.so.12",
                                                "libnvrtc.so.13"};
inline constexpr LibraryName kNvrtcLibrary = {
    "NVRTC, the CUDA run-time compiler", kNvrtcSonames,
    "nvidia-cuda-nvrtc-cu12"};

inline constexpr const char* kNcclSonames[] = {"libnccl.so.2"};
inline constexpr LibraryName kNcclLibrary = {"NCCL", kNcclSonames,
                                             "nvidia-nccl-cu12"};

// Without it nothing is amiss.
inline constexpr const char* kNvtxSonames[] = {"libnvToolsExt.so.1"};
inline constexpr LibraryName kNvtxLibrary = {"NVTX", kNvtxSonames,
                                             "nvidia-nvtx-cu12"};

}  // namespace ring_keras::cuda

#endif  // RING_KERAS_CUDA_LIBRARY_NAMES_H_
