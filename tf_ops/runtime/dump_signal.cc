#include "tf_ops/runtime/dump_signal.h"

#include <signal.h>

#include <atomic>

#include "tf_ops/monitoring/stacks.h"

namespace ring_keras {
namespace {

std::atomic<bool> requested{false};
struct sigaction previous;

void OnSignal(int number, siginfo_t* info, void* context) {
  requested.store(true);
  if ((previous.sa_flags & SA_SIGINFO) != 0) {
    previous.sa_sigaction(number, info, context);
  } else if (previous.sa_handler != SIG_DFL && previous.sa_handler != SIG_IGN) {
    previous.sa_handler(number);
  }
}

bool IsOurs(const struct sigaction& action) {
  return (action.sa_flags & SA_SIGINFO) != 0 &&
         action.sa_sigaction == &OnSignal;
}

struct sigaction Current() {
  struct sigaction current = {};
  sigaction(SIGUSR2, nullptr, &current);
  return current;
}

void SetOurs() {
  struct sigaction action = {};
  action.sa_sigaction = &OnSignal;
  action.sa_flags = SA_RESTART | SA_SIGINFO;
  sigemptyset(&action.sa_mask);
  sigaction(SIGUSR2, &action, nullptr);
}

}  // namespace

void ListenForDumpSignal() {
  const struct sigaction current = Current();
  if (IsOurs(current)) return;
  previous = current;
  SetOurs();
}

bool TakeDumpRequest() {
  return requested.load(std::memory_order_relaxed) && requested.exchange(false);
}

void BeginStacksByHandler() {
  const struct sigaction current = Current();
  const bool takes_number = (current.sa_flags & SA_SIGINFO) == 0;
  SetOurs();
  BeginStacks(takes_number ? current.sa_handler : nullptr, SIGUSR2);
}

}  // namespace ring_keras
