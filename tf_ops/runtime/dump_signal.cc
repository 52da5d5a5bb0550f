#include "tf_ops/runtime/dump_signal.h"

#include <signal.h>
#include <unistd.h>

#include <atomic>

namespace ring_keras {
namespace {

std::atomic<bool> listening{false};
std::atomic<bool> requested{false};
// The thread that is sending it to itself, for the stacks alone; 0: none.
std::atomic<pid_t> sender{0};
struct sigaction previous;

void OnSignal(int number, siginfo_t* info, void* context) {
  // The program's own handler hears of signals that others have sent.
  if (sender.load() == gettid()) return;
  requested.store(true);
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
  sender.store(gettid());
  raise(SIGUSR2);
  sender.store(0);
}

}  // namespace ring_keras
