#include "tf_ops/cuda/library_paths.h"

#include <filesystem>
#include <fstream>
#include <string>

#include "tests/cpp/support/test.h"
#include "tf_ops/cuda/version.h"

namespace ring_keras::testing {
namespace {

using cuda::LibraryName;

constexpr const char* kAbsent[] = {"libring_keras_absent.so.12",
                                   "libring_keras_absent.so.13"};
constexpr LibraryName kAbsentLibrary = {"the absent library", kAbsent,
                                        "nvidia-absent-cu12"};
constexpr const char* kMath[] = {"libm.so.6"};
constexpr LibraryName kMathLibrary = {"the mathematical library", kMath,
                                      "no-package"};

bool Contains(const std::string& text, const std::string& part) {
  return text.find(part) != text.npos;
}

// A folder of its own, removed with it.
class Folder {
 public:
  Folder() {
    std::string path =
        std::filesystem::temp_directory_path() / "ring_keras_XXXXXX";
    path_ = mkdtemp(path.data());
  }
  ~Folder() { std::filesystem::remove_all(path_); }
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

RING_TEST(MissingLibraryNamesThePackage) {
  const Status status = cuda::OpenLibrary(kAbsentLibrary).status();
  EXPECT_EQ(status.code(), StatusCode::kInternal);
  for (const char* part :
       {"the absent library",
        "libring_keras_absent.so.12 or libring_keras_absent.so.13",
        "pip install ring-keras[cuda]", "nvidia-absent-cu12",
        "RING_KERAS_CUDA_LIBRARY_PATH", "cannot open shared object file"}) {
    EXPECT_TRUE(Contains(status.message(), part))
        << part << " in " << status.message();
  }
}

RING_TEST(MissingDriverAsksForTheDriver) {
  constexpr LibraryName kDriver = {"the absent driver", kAbsent, nullptr};
  const std::string message = cuda::OpenLibrary(kDriver).status().message();
  EXPECT_TRUE(Contains(message, "NVIDIA's driver")) << message;
  EXPECT_FALSE(Contains(message, "pip install")) << message;
}

RING_TEST(BrokenFileIsNamedAndTheSearchGoesOn) {
  const Folder folder;
  std::ofstream(folder.path() / kAbsent[1]) << "not a library";
  cuda::SetLibraryPath("/nonexistent:" + folder.path().string());
  const std::string message =
      cuda::OpenLibrary(kAbsentLibrary).status().message();
  EXPECT_TRUE(Contains(message, folder.path() / kAbsent[1])) << message;

  std::ofstream(folder.path() / kMath[0]) << "not a library";
  EXPECT_OK(cuda::OpenLibrary(kMathLibrary));
  cuda::SetLibraryPath("");
}

RING_TEST(PipPackagesAreFound) {
  const Folder folder;
  const auto libraries = folder.path() / "nvidia" / "nccl" / "lib";
  std::filesystem::create_directories(libraries);
  std::ofstream(libraries / kAbsent[0]) << "not a library";
  cuda::SetPackageFolder(folder.path());
  const std::string message =
      cuda::OpenLibrary(kAbsentLibrary).status().message();
  EXPECT_TRUE(Contains(message, libraries / kAbsent[0])) << message;
  cuda::SetPackageFolder("");
}

RING_TEST(MissingFunctionIsNamed) {
  StatusOr<void*> handle = cuda::OpenLibrary(kMathLibrary);
  ASSERT_OK(handle);
  cuda::Symbols symbols(kMathLibrary, handle.value());
  double (*cosine)(double) = nullptr;
  symbols.Find("cos", &cosine);
  ASSERT_OK(symbols.status());
  EXPECT_EQ(cosine(0.0), 1.0);

  void (*absent)() = nullptr;
  symbols.FindIfAny("ring_keras_absent", &absent);
  EXPECT_TRUE(absent == nullptr);
  ASSERT_OK(symbols.status());
  symbols.Find("ring_keras_absent", &absent);
  symbols.Find("ring_keras_also_absent", &absent);
  EXPECT_TRUE(absent == nullptr);
  const std::string& message = symbols.status().message();
  EXPECT_TRUE(Contains(message, "ring_keras_absent")) << message;
  EXPECT_TRUE(Contains(message, "the mathematical library")) << message;
}

RING_TEST(OldLibraryIsRefused) {
  constexpr cuda::Version kLeast = {2, 18, 3};
  EXPECT_OK(cuda::CheckVersion(kAbsentLibrary, {2, 18, 3}, kLeast));
  EXPECT_OK(cuda::CheckVersion(kAbsentLibrary, {2, 27, 0}, kLeast));
  EXPECT_OK(cuda::CheckVersion(kAbsentLibrary, {3, 0, 0}, kLeast));
  const Status status = cuda::CheckVersion(kAbsentLibrary, {2, 17, 9}, kLeast);
  for (const char* part : {"the absent library", "2.18.3", "2.17.9",
                           "pip install ring-keras[cuda]"}) {
    EXPECT_TRUE(Contains(status.message(), part)) << status.message();
  }
  EXPECT_TRUE(cuda::CudaVersion(12090) == (cuda::Version{12, 9, 0}));
}

}  // namespace
}  // namespace ring_keras::testing
