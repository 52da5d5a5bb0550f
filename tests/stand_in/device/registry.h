// Handles of a C interface: what is behind one lives as long as the registry
// or somebody's work holds it.
#ifndef RING_KERAS_TESTS_STAND_IN_DEVICE_REGISTRY_H_
#define RING_KERAS_TESTS_STAND_IN_DEVICE_REGISTRY_H_

#include <cstdint>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <utility>
#include <vector>

namespace ring_keras::stand_in {

template <typename T>
class Registry {
 public:
  void* Add(std::shared_ptr<T> object) {
    std::lock_guard lock(mutex_);
    void* handle = object.get();
    objects_[handle] = std::move(object);
    return handle;
  }

  // Null if there is none, or none any more.
  std::shared_ptr<T> Find(void* handle) {
    std::lock_guard lock(mutex_);
    const auto found = objects_.find(handle);
    return found == objects_.end() ? nullptr : found->second;
  }

  std::shared_ptr<T> Remove(void* handle) {
    std::lock_guard lock(mutex_);
    const auto found = objects_.find(handle);
    if (found == objects_.end()) return nullptr;
    std::shared_ptr<T> object = std::move(found->second);
    objects_.erase(found);
    return object;
  }

  std::vector<std::shared_ptr<T>> All() {
    std::lock_guard lock(mutex_);
    std::vector<std::shared_ptr<T>> all;
    for (const auto& [handle, object] : objects_) all.push_back(object);
    return all;
  }

  int64_t Count() {
    std::lock_guard lock(mutex_);
    return static_cast<int64_t>(objects_.size());
  }

 private:
  std::mutex mutex_;
  std::unordered_map<void*, std::shared_ptr<T>> objects_;
};

}  // namespace ring_keras::stand_in

#endif  // RING_KERAS_TESTS_STAND_IN_DEVICE_REGISTRY_H_
