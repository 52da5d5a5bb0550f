// Appends dumps to this rank's file.
//
// By a thread of its own: a file system may take seconds, or hang, and the
// driver has peers to tell of an error.
#ifndef RING_KERAS_MONITORING_DUMP_WRITER_H_
#define RING_KERAS_MONITORING_DUMP_WRITER_H_

#include <memory>
#include <string>
#include <vector>

#include "tf_ops/monitoring/collective_record.h"

namespace ring_keras {

struct PendingCollective {
  CollectiveRecord record;
  std::vector<int> missing;  // The job's ranks that it waits for.
};

// What a rank was doing at one moment.
struct Dump {
  int rank = 0;
  int size = 0;
  std::string who;
  std::string why;
  Ticks at = 0;
  std::vector<CollectiveRecord> ended;
  std::vector<PendingCollective> pending;
  // What whoever reads the log should know besides; may be empty.
  std::string remark;
};

// Thread-safe.
class DumpWriter {
 public:
  explicit DumpWriter(std::string path);
  // As Await(), then leaves what is not written to a thread that the end of the
  // process ends.
  ~DumpWriter();
  DumpWriter(const DumpWriter&) = delete;
  DumpWriter& operator=(const DumpWriter&) = delete;

  // Returns at once. The dump is followed by the stacks of all threads.
  void Write(Dump dump);
  // Waits until all is written, at most ten seconds; whether it is.
  bool Await();

 private:
  struct Shared;
  static void ThreadMain(const std::shared_ptr<Shared>& shared);

  const std::shared_ptr<Shared> shared_;
};

}  // namespace ring_keras

#endif  // RING_KERAS_MONITORING_DUMP_WRITER_H_
