// Tensors seen as one vector, one behind the other.
#ifndef RING_KERAS_KERNELS_FLAT_TENSORS_H_
#define RING_KERAS_KERNELS_FLAT_TENSORS_H_

#include <algorithm>
#include <cstdint>
#include <vector>

namespace ring_keras {

// Where each of them lies in it.
class FlatTensors {
 public:
  void Add(int64_t count) { ends_.push_back(this->count() + count); }

  int64_t count() const { return ends_.empty() ? 0 : ends_.back(); }

  int64_t size() const { return static_cast<int64_t>(ends_.size()); }

  int64_t Begin(int64_t index) const {
    return index > 0 ? ends_[index - 1] : 0;
  }

  int64_t End(int64_t index) const { return ends_[index]; }

  // Calls `piece` with (the number of a tensor, a place in it, a place behind
  // `begin`, how many elements there are from both on), for all between.
  template <typename Piece>
  void ForEachPiece(int64_t begin, int64_t end, const Piece& piece) const {
    end = std::min(end, count());
    auto index =
        std::upper_bound(ends_.begin(), ends_.end(), begin) - ends_.begin();
    for (int64_t place = begin; place < end; ++index) {
      const int64_t next = std::min(end, End(index));
      if (next > place) {
        piece(index, place - Begin(index), place - begin, next - place);
      }
      place = next;
    }
  }

 private:
  std::vector<int64_t> ends_;
};

}  // namespace ring_keras

#endif  // RING_KERAS_KERNELS_FLAT_TENSORS_H_
