#include "tf_ops/common/fork.h"

#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <map>
#include <mutex>
#include <set>
#include <utility>

namespace ring_keras {
namespace {

// How many forks lie between the process that loaded this code and this one.
std::atomic<int> forks{0};

// What to do in a child. Held across fork(), so that the child finds it whole;
// nobody waits or calls anything while holding it.
struct Registry {
  std::mutex mutex;
  std::map<const ForkHandler*, std::function<void()>> handlers;
  std::set<int> descriptors;

  // Never destroyed: objects of any lifetime are in it.
  static Registry& Get() {
    static Registry* registry = [] {
      auto* made = new Registry;
      pthread_atfork([] { Get().mutex.lock(); }, [] { Get().mutex.unlock(); },
                     [] { Get().InChild(); });
      return made;
    }();
    return *registry;
  }

  void InChild() {
    forks.fetch_add(1, std::memory_order_relaxed);
    std::map<const ForkHandler*, std::function<void()>> spent;
    spent.swap(handlers);
    std::set<int> inherited;
    inherited.swap(descriptors);
    mutex.unlock();
    for (const auto& [handler, in_child] : spent) in_child();
    for (int fd : inherited) close(fd);
  }
};

}  // namespace

ForkHandler::ForkHandler(std::function<void()> in_child) {
  Registry& registry = Registry::Get();
  std::lock_guard<std::mutex> lock(registry.mutex);
  registry.handlers.emplace(this, std::move(in_child));
}

ForkHandler::~ForkHandler() {
  Registry& registry = Registry::Get();
  std::lock_guard<std::mutex> lock(registry.mutex);
  registry.handlers.erase(this);
}

OwnerProcess::OwnerProcess() : forks_((Registry::Get(), forks.load())) {}

bool OwnerProcess::IsThis() const {
  return forks_ == forks.load(std::memory_order_relaxed);
}

void CloseInForkedChildren(int fd) {
  Registry& registry = Registry::Get();
  std::lock_guard<std::mutex> lock(registry.mutex);
  registry.descriptors.insert(fd);
}

void NoLongerCloseInForkedChildren(int fd) {
  Registry& registry = Registry::Get();
  std::lock_guard<std::mutex> lock(registry.mutex);
  registry.descriptors.erase(fd);
}

}  // namespace ring_keras
