#include "tf_ops/runtime/dump_signal.h"

#include <signal.h>

#include <atomic>

namespace ring_keras {
namespace {

std::atomic<bool> listening{false};
std::atomic<bool> requested{false};
// Threads that have sent it to themselves.
std::atomic<int> own{0};
struct sigaction previous;

void OnSignal(int number, siginfo_t* info, void* context) {
  if (own.load() == 0) requested.store(true);
  if ((previous.sa_flags & SA_SIGINFO) != 0) {
    previous.sa_sigaction(number, info, context);
  } else if (previous.sa_handler != SIG_DFL && previous.sa_handler != SIG_IGN) {
    previous.sa_handler(number);
  }
}

}  // namespace

void ListenForDumpSignal() {
  if (listening.exchange(true)) return;
  struct sigaction action = {};
  action.sa_sigaction = &OnSignal;
  action.sa_flags = SA_RESTART | SA_SIGINFO;
  sigemptyset(&action.sa_mask);
  sigaction(SIGUSR2, &action, &previous);
}

bool TakeDumpRequest() {
  return requested.load(std::memory_order_relaxed) && requested.exchange(false);
}

void WriteStacks() {
  if (!listening.load()) return;
  ++own;
  raise(SIGUSR2);
  --own;
}

}  // namespace ring_keras
