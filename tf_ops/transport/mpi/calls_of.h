// Calls of an MPI whose handles are of some type.
#ifndef RING_KERAS_TRANSPORT_MPI_CALLS_OF_H_
#define RING_KERAS_TRANSPORT_MPI_CALLS_OF_H_

#include <dlfcn.h>

#include <functional>
#include <string>
#include <utility>

#include "tf_ops/transport/mpi/calls.h"

namespace ring_keras::mpi {

// What C programs get from mpi.h.
template <typename Handle>
struct Constants {
  Handle world;          // MPI_COMM_WORLD
  Handle self;           // MPI_COMM_SELF
  Handle byte;           // MPI_BYTE
  Handle errors_return;  // MPI_ERRORS_RETURN
  int any_source;        // MPI_ANY_SOURCE
  int all_threads;       // MPI_THREAD_MULTIPLE
};

template <typename Handle>
class CallsOf : public Calls {
 public:
  // Looks its functions up; missing() says which is not there, if one is not.
  CallsOf(void* library, const Constants<Handle>& constants)
      : library_(library), constants_(constants) {
#define RING_KERAS_FIND(name) Find("MPI_" #name, &name##_)
    RING_KERAS_FIND(Initialized);
    RING_KERAS_FIND(Finalized);
    RING_KERAS_FIND(Init_thread);
    RING_KERAS_FIND(Query_thread);
    RING_KERAS_FIND(Finalize);
    RING_KERAS_FIND(Comm_rank);
    RING_KERAS_FIND(Comm_size);
    RING_KERAS_FIND(Comm_idup);
    RING_KERAS_FIND(Comm_set_errhandler);
    RING_KERAS_FIND(Comm_create_keyval);
    RING_KERAS_FIND(Comm_set_attr);
    RING_KERAS_FIND(Isend);
    RING_KERAS_FIND(Irecv);
    RING_KERAS_FIND(Test);
    RING_KERAS_FIND(Get_count);
    RING_KERAS_FIND(Cancel);
    RING_KERAS_FIND(Iprobe);
    RING_KERAS_FIND(Error_string);
    RING_KERAS_FIND(Get_library_version);
#undef RING_KERAS_FIND
  }

  const std::string& missing() const { return missing_; }

  bool IsInitialized() const override { return Ask(Initialized_); }
  bool IsFinalized() const override { return Ask(Finalized_); }

  int Initialize() override {
    int level = 0;
    return Init_thread_(nullptr, nullptr, constants_.all_threads, &level);
  }
  int Finalize() override { return Finalize_(); }

  bool AllowsAllThreads() const override {
    int level = 0;
    return Query_thread_(&level) == kSuccess && level >= constants_.all_threads;
  }

  int rank() const override { return Count(Comm_rank_); }
  int size() const override { return Count(Comm_size_); }

  // MPI_Finalize() deletes what hangs on MPI_COMM_SELF first.
  int BeforeEnd(std::function<void()> function) override {
    before_end_ = std::move(function);
    int key = 0;
    const int error = Comm_create_keyval_(
        [](Handle, int, void*, void*, void*, int* copied) {
          *copied = 0;
          return kSuccess;
        },
        [](Handle, int, void* value, void*) {
          static_cast<CallsOf*>(value)->before_end_();
          return kSuccess;
        },
        &key, nullptr);
    if (error != kSuccess) return error;
    return Comm_set_attr_(constants_.self, key, this);
  }

  int BeginCommunicator(Request* request) override {
    return Comm_idup_(constants_.world, &communicator_, &request->handle);
  }
  // Or an error would end the process.
  int FinishCommunicator() override {
    return Comm_set_errhandler_(communicator_, constants_.errors_return);
  }

  int Send(const void* data, size_t nbytes, int rank, int tag,
           Request* request) override {
    return Isend_(data, static_cast<int>(nbytes), constants_.byte, rank, tag,
                  communicator_, &request->handle);
  }
  int Receive(void* data, size_t nbytes, int rank, int tag,
              Request* request) override {
    return Irecv_(data, static_cast<int>(nbytes), constants_.byte, rank, tag,
                  communicator_, &request->handle);
  }

  int Test(Request* request, Progress* progress) override {
    StatusPlace status;
    int done = 0;
    int error = Test_(&request->handle, &done, &status);
    progress->done = done != 0;
    if (error == kSuccess && progress->done) {
      error = Get_count_(&status, constants_.byte, &progress->nbytes);
    }
    return error;
  }

  int Cancel(Request* request) override { return Cancel_(&request->handle); }

  int MakeProgress() override {
    StatusPlace status;
    int there = 0;
    return Iprobe_(constants_.any_source, 0, communicator_, &there, &status);
  }

  std::string Describe(int error) const override {
    char text[kTextBytes] = "";
    int length = 0;
    if (Error_string_(error, text, &length) != kSuccess) length = 0;
    return length > 0 ? text : StrCat("error ", error);
  }

  std::string version() const override {
    char text[kTextBytes] = "";
    int length = 0;
    if (Get_library_version_(text, &length) != kSuccess) return "";
    const std::string all(text);
    return all.substr(0, all.find('\n'));
  }

 private:
  // More than any MPI's longest text.
  static constexpr size_t kTextBytes = 1 << 14;
  // Larger than any MPI's MPI_Status.
  struct StatusPlace {
    uint64_t bytes[8] = {};
  };
  // Of MPI, by the places of handles where it writes them.
  using Flag = int(int* yes);
  using Counting = int(Handle communicator, int* count);
  using Copying = int(Handle communicator, int key, void* state, void* value,
                      void* copy, int* copied);
  using Deleting = int(Handle communicator, int key, void* value, void* state);

  template <typename Function>
  void Find(const char* name, Function** function) {
    *function = reinterpret_cast<Function*>(dlsym(library_, name));
    if (*function == nullptr && missing_.empty()) missing_ = name;
  }

  bool Ask(Flag* flag) const {
    int yes = 0;
    return flag(&yes) == kSuccess && yes != 0;
  }
  int Count(Counting* counting) const {
    int count = 0;
    return counting(constants_.world, &count) == kSuccess ? count : -1;
  }

  void* const library_;
  const Constants<Handle> constants_;
  std::string missing_;
  Handle communicator_{};
  std::function<void()> before_end_;

  // Named as in MPI.
  Flag* Initialized_;
  Flag* Finalized_;
  int (*Init_thread_)(int* count, char*** words, int required, int* provided);
  int (*Query_thread_)(int* provided);
  int (*Finalize_)();
  Counting* Comm_rank_;
  Counting* Comm_size_;
  int (*Comm_idup_)(Handle communicator, Handle* copy, void* request);
  int (*Comm_set_errhandler_)(Handle communicator, Handle handler);
  int (*Comm_create_keyval_)(Copying* copy, Deleting* erase, int* key,
                             void* state);
  int (*Comm_set_attr_)(Handle communicator, int key, void* value);
  int (*Isend_)(const void* data, int count, Handle type, int rank, int tag,
                Handle communicator, void* request);
  int (*Irecv_)(void* data, int count, Handle type, int rank, int tag,
                Handle communicator, void* request);
  int (*Test_)(void* request, int* done, void* status);
  int (*Get_count_)(const void* status, Handle type, int* count);
  int (*Cancel_)(void* request);
  int (*Iprobe_)(int rank, int tag, Handle communicator, int* there,
                 void* status);
  int (*Error_string_)(int error, char* text, int* length);
  int (*Get_library_version_)(char* text, int* length);
};

}  // namespace ring_keras::mpi

#endif  // RING_KERAS_TRANSPORT_MPI_CALLS_OF_H_
