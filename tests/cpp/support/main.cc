// Runs the tests of the executable it is linked into: all, or those of a file
// or whose name contains the first argument. Exits with 1 if one failed or none
// ran.
#include <atomic>
#include <chrono>
#include <cstdio>
#include <exception>
#include <string>
#include <vector>

#include "tests/cpp/support/test.h"

namespace ring_keras::testing {
namespace {

struct Test {
  std::string file;
  const char* name;
  TestFunction function;
};

// A function's static, because tests register before main() in any order.
std::vector<Test>& Tests() {
  static std::vector<Test> tests;
  return tests;
}

std::atomic<int> failures{0};

void Run(const Test& test) {
  try {
    test.function();
  } catch (const std::exception& error) {
    Failure(test.name, 0, StrCat("threw ", error.what()));
  }
}

}  // namespace

bool Register(const char* file, const char* name, TestFunction function) {
  const std::string path(file);
  Tests().push_back({path.substr(path.rfind('/') + 1), name, function});
  return true;
}

Failure::Failure(const char* file, int line, const std::string& what) {
  text_ << file << ":" << line << ": " << what;
}

// One write, so that failures of several threads do not mix.
Failure::~Failure() {
  ++failures;
  text_ << "\n";
  const std::string text = text_.str();
  std::fwrite(text.data(), 1, text.size(), stderr);
}

int RunTests(const std::string& filter) {
  int run_count = 0;
  int failed_count = 0;
  for (const Test& test : Tests()) {
    if (test.file != filter && !Has(test.name, filter)) continue;
    std::printf("[ run  ] %s\n", test.name);
    std::fflush(stdout);
    const int failures_before = failures;
    const auto start = std::chrono::steady_clock::now();
    Run(test);
    const std::chrono::duration<double> elapsed =
        std::chrono::steady_clock::now() - start;
    const bool passed = failures == failures_before;
    std::printf("[ %s ] %s (%.2f s)\n", passed ? " ok " : "FAIL", test.name,
                elapsed.count());
    std::fflush(stdout);
    ++run_count;
    if (!passed) ++failed_count;
  }
  std::printf("%d tests, %d failed\n", run_count, failed_count);
  if (run_count == 0) {
    std::fprintf(stderr, "no test's name contains '%s', nor is that a file\n",
                 filter.c_str());
    return 1;
  }
  return failed_count;
}

}  // namespace ring_keras::testing

int main(int argc, char** argv) {
  const std::string filter = argc > 1 ? argv[1] : "";
  return ring_keras::testing::RunTests(filter) == 0 ? 0 : 1;
}
