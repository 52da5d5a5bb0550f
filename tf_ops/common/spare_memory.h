// Memory that is used again: new one costs a fault for each page, and some
// networks a registration. Not thread-safe.
#ifndef RING_KERAS_COMMON_SPARE_MEMORY_H_
#define RING_KERAS_COMMON_SPARE_MEMORY_H_

#include <algorithm>
#include <cstddef>
#include <memory>
#include <new>
#include <utility>
#include <vector>

namespace ring_keras {

class SpareMemory {
 public:
  struct Buffer {
    std::shared_ptr<char[]> memory;
    size_t nbytes = 0;
  };

  // Keeps so many bytes at most that nobody uses, and no buffer of more than a
  // quarter of them: one that is long and needed once would keep out all
  // others.
  explicit SpareMemory(size_t max_nbytes) : max_nbytes_(max_nbytes) {}

  // At least `nbytes` long, with anything in it; none for 0.
  Buffer Take(size_t nbytes) {
    if (nbytes == 0) return {};
    const auto fits = [nbytes](const Buffer& one) {
      return one.nbytes >= nbytes;
    };
    const auto found = std::find_if(spare_.begin(), spare_.end(), fits);
    if (found == spare_.end()) {
      return {std::shared_ptr<char[]>(new char[nbytes]), nbytes};
    }
    Buffer buffer = std::move(*found);
    spare_.erase(found);
    nbytes_ -= buffer.nbytes;
    return buffer;
  }

  // Nobody uses it any more. It takes the place of shorter ones, if it must.
  void Give(Buffer buffer) noexcept {
    const size_t nbytes = buffer.nbytes;
    if (nbytes == 0 || nbytes > max_nbytes_ / 4) return;
    while (nbytes_ + nbytes > max_nbytes_) {
      if (spare_.front().nbytes >= nbytes) return;
      nbytes_ -= spare_.front().nbytes;
      spare_.erase(spare_.begin());
    }
    const auto shorter = [](const Buffer& a, const Buffer& b) {
      return a.nbytes < b.nbytes;
    };
    try {
      spare_.insert(
          std::upper_bound(spare_.begin(), spare_.end(), buffer, shorter),
          std::move(buffer));
      nbytes_ += nbytes;
    } catch (const std::bad_alloc&) {  // Then it is not kept.
    }
  }

  // A buffer that goes back at the end of its life. `spare` outlives it.
  class Loan {
   public:
    Loan(SpareMemory& spare, size_t nbytes)
        : spare_(&spare), buffer_(spare.Take(nbytes)) {}
    ~Loan() { spare_->Give(std::move(buffer_)); }
    Loan(const Loan&) = delete;
    Loan& operator=(const Loan&) = delete;

    char* get() const { return buffer_.memory.get(); }

   private:
    SpareMemory* spare_;
    Buffer buffer_;
  };

 private:
  const size_t max_nbytes_;
  size_t nbytes_ = 0;          // Of those below.
  std::vector<Buffer> spare_;  // The shortest first.
};

}  // namespace ring_keras

#endif  // RING_KERAS_COMMON_SPARE_MEMORY_H_
