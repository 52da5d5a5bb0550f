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

struct Handler {
  std::function<void()> in_child;
  std::function<void()> before;
  std::function<void()> in_parent;
};

// What to do when this process forks. Held across fork(), so that the child
// finds it whole; but for that, nobody waits or calls anything while holding
// it.
struct Registry {
  std::mutex mutex;
  std::map<const ForkHandler*, Handler> handlers;
  std::set<int> descriptors;

  // Never destroyed: objects of any lifetime are in it.
  static Registry& Get() {
    static Registry* registry = [] {
      auto* made = new Registry;
      pthread_atfork([] { Get().Before(); }, [] { Get().InParent(); },
                     [] { Get().InChild(); });
      return made;
    }();
    return *registry;
  }

  void Before() {
    mutex.lock();
    for (const auto& [key, handler] : handlers) {
      if (handler.before) handler.before();
    }
  }

  void InParent() {
    for (const auto& [key, handler] : handlers) {
      if (handler.in_parent) handler.in_parent();
    }
    mutex.unlock();
  }

  void InChild() {
    forks.fetch_add(1, std::memory_order_relaxed);
    std::map<const ForkHandler*, Handler> spent;
    spent.swap(handlers);
    std::set<int> inherited;
    inherited.swap(descriptors);
    mutex.unlock();
    for (const auto& [key, handler] : spent) handler.in_child();
    for (int fd : inherited) close(fd);
  }
};

}  // namespace

ForkHandler::ForkHandler(std::function<void()> in_child,
                         std::function<void()> before,
                         std::function<void()> in_parent) {
  Registry& registry = Registry::Get();
  std::lock_guard<std::mutex> lock(registry.mutex);
  registry.handlers.emplace(
      this,
      Handler{std::move(in_child), std::move(before), std::move(in_parent)});
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
