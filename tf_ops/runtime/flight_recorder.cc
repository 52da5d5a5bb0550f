#include "tf_ops/runtime/flight_recorder.h"

#include <utility>

#include "tf_ops/common/status.h"

namespace ring_keras {
namespace {

std::unique_ptr<DumpWriter> WriterFor(const std::string& trace_dir, int rank) {
  if (trace_dir.empty()) return nullptr;
  return std::make_unique<DumpWriter>(
      StrCat(trace_dir, "/rank", rank, ".trace"));
}

}  // namespace

FlightRecorder::FlightRecorder(const std::string& trace_dir, int rank, int size,
                               std::string name, const Recorder& recorder)
    : rank_(rank),
      size_(size),
      name_(std::move(name)),
      recorder_(recorder),
      writer_(WriterFor(trace_dir, rank)) {}

bool FlightRecorder::Takes(DumpCause cause, Asker asker) {
  return writer_ != nullptr && budget_.Take(cause, asker == Asker::kThisRank,
                                            std::chrono::steady_clock::now());
}

void FlightRecorder::Write(DumpCause cause, const std::string& why,
                           std::vector<PendingCollective> pending) {
  writer_->Write({.rank = rank_,
                  .size = size_,
                  .who = name_,
                  .why = why,
                  .at = Now(),
                  .ended = recorder_.Recent(),
                  .pending = std::move(pending),
                  .remark = budget_.Exhausted(cause)});
}

void FlightRecorder::Await() {
  if (writer_ != nullptr) writer_->Await();
}

}  // namespace ring_keras
