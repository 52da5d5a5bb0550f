// Collectives that go on beyond the step of a program that began them.
#ifndef RING_KERAS_RUNTIME_DEPARTED_CALLS_H_
#define RING_KERAS_RUNTIME_DEPARTED_CALLS_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "tf_ops/common/export.h"
#include "tf_ops/runtime/submitted_call.h"

namespace ring_keras {

// One of them. It works in host memory of its own, so it needs nothing of the
// step that began it, which may have failed since.
class RING_KERAS_EXPORT DepartedCall {
 public:
  // Copies a tensor to host memory.
  using CopyBytes =
      std::function<Status(void* to, const void* from, size_t nbytes)>;

  struct Result {
    const void* data;
    size_t nbytes;
  };

  // Hands `request` to the engine, with copies of its inputs. What fails before
  // is told to the peers, which wait for this rank, and by Wait.
  static std::shared_ptr<DepartedCall> Submit(Request request,
                                              const CopyBytes& copy);

  // Returns when it has ended, or after Leave with an error.
  Status Wait() { return call_->Wait(); }

  // Has those return who wait for it. It goes on.
  void Leave() { call_->Leave(); }
  // Whether that was before its end.
  bool IsLeft() const { return call_->IsLeft(); }

  bool IsDone() const { return call_->IsDone(); }

  // Once it has ended well: as many as the inputs. They live as long as this.
  std::vector<Result> Results() const;

 private:
  struct Memory;

  std::shared_ptr<Memory> memory_;
  std::shared_ptr<SubmittedCall> call_;
};

// All of this process, each in a slot of its own: a number, which a program may
// write into what it compiles, as it cannot a pointer.
class RING_KERAS_EXPORT DepartedCalls {
 public:
  static DepartedCalls& Get();

  // A slot that nobody has had.
  int64_t NewSlot();

  // What was in the slot is forgotten: it ends by itself.
  void Put(int64_t slot, std::shared_ptr<DepartedCall> call);

  // Null if nothing is there.
  std::shared_ptr<DepartedCall> Take(int64_t slot);

 private:
  std::mutex mutex_;  // Guards the rest.
  int64_t last_slot_ = 0;
  std::map<int64_t, std::shared_ptr<DepartedCall>> calls_;
};

}  // namespace ring_keras

#endif  // RING_KERAS_RUNTIME_DEPARTED_CALLS_H_
