#include "tests/fuzz/support/fuzz.h"

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>

// Called by libFuzzer before it reads its corpus: puts the seeds into the first
// folder that it is given.
extern "C" int LLVMFuzzerInitialize(int* argc, char*** argv) {
  for (int i = 1; i < *argc; ++i) {
    const std::filesystem::path folder = (*argv)[i];
    if (!std::filesystem::is_directory(folder)) continue;
    int number = 0;
    for (const std::string& seed : ring_keras::Seeds()) {
      std::ofstream file(folder / ("seed-" + std::to_string(number++)),
                         std::ios::binary);
      file << seed;
    }
    break;
  }
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t nbytes) {
  ring_keras::FuzzOne(std::string(reinterpret_cast<const char*>(data), nbytes));
  return 0;
}
