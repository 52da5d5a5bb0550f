// Uses what build_support/manylinux/old_symbols.cc has; test_release.py calls
// it.
#include <chrono>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <sstream>
#include <stdexcept>
#include <string>

namespace {

struct Counted : std::runtime_error {
  Counted() : std::runtime_error("counted") { ++alive; }
  Counted(const Counted& other) : std::runtime_error(other) { ++alive; }
  ~Counted() override { --alive; }
  static int alive;
};
int Counted::alive = 0;

}  // namespace

extern "C" {

// Zero if each copy counts, and the last one ends the exception.
int ExceptionPointers() {
  std::exception_ptr first;
  try {
    throw Counted();
  } catch (...) {
    first = std::current_exception();
  }
  std::exception_ptr second = first;
  std::exception_ptr third;
  for (int i = 0; i < 1000; ++i) {
    third = second;
    std::exception_ptr copy(third);
    second = copy;
  }
  first = nullptr;
  second = nullptr;
  if (Counted::alive != 1) return 1;
  try {
    std::rethrow_exception(third);
  } catch (const std::runtime_error& error) {
    if (std::string(error.what()) != "counted") return 2;
  }
  third = nullptr;
  return Counted::alive == 0 ? 0 : 3;
}

int Streams() {
  std::stringstream both;
  std::ostringstream out;
  both << 5 << 'a';
  out << 7;
  return both.str() == "5a" && out.str() == "7" ? 0 : 1;
}

// Zero if it waits until the deadline, longer than the shim's pieces are, and
// no shorter.
int WaitsUntil() {
  std::mutex mutex;
  std::condition_variable never;
  std::unique_lock<std::mutex> lock(mutex);
  const auto deadline =
      std::chrono::steady_clock::now() + std::chrono::milliseconds(1100);
  if (never.wait_until(lock, deadline, [] { return false; })) return 1;
  return std::chrono::steady_clock::now() >= deadline ? 0 : 2;
}

}  // extern "C"
