// The flight recorder: what a rank writes down when something is wrong.
#include <fcntl.h>
#include <unistd.h>

#include <chrono>
#include <string>

#include "tf_ops/common/logging.h"
#include "tf_ops/common/socket.h"
#include "tf_ops/monitoring/dump_format.h"
#include "tf_ops/runtime/dump_signal.h"
#include "tf_ops/runtime/engine.h"

namespace ring_keras {
namespace {

constexpr std::chrono::seconds kDumpInterval(5);
// Each has up to 1.5 MB.
constexpr int kMaxDumps = 32;

std::string JsonRanks(const std::vector<int>& ranks) {
  std::string text;
  for (int rank : ranks) {
    text += (text.empty() ? "" : ", ") + std::to_string(rank);
  }
  return "[" + text + "]";
}

Status AppendToFile(const std::string& path, const std::string& text) {
  FileDescriptor file(
      open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600));
  size_t written = 0;
  while (file.get() >= 0 && written < text.size()) {
    const ssize_t count =
        write(file.get(), text.data() + written, text.size() - written);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) break;
    written += count;
  }
  if (written == text.size()) return Status::Ok();
  return Status(StatusCode::kInternal,
                StrCat("cannot write to ", path, ": ", ErrnoMessage(errno)));
}

}  // namespace

void Engine::Dump(const std::string& why) {
  WithDriver([&] {
    next_dump_ = Clock::now();  // Whoever asks has a reason.
    WriteDump(why, false);
  });
}

void Engine::LookAround() {
  if (!TakeDumpRequest()) return;
  next_dump_ = Clock::now();
  WriteDump("SIGUSR2", false);
}

void Engine::WriteDump(const std::string& why, bool peers_know) {
  const Clock::time_point now = Clock::now();
  if (options_.trace_dir.empty() || now < next_dump_ || dumps_ == kMaxDumps) {
    return;
  }
  next_dump_ = now + kDumpInterval;
  ++dumps_;
  for (int rank = 0; rank < mesh_->size() && !peers_know; ++rank) {
    if (rank == mesh_->rank()) continue;
    mesh_->pair(rank).SendControl(FrameType::kDump, 0, why);
  }
  const TickScale scale;
  std::string text =
      StrCat("\n{\"event\": \"dump\", \"rank\": ", mesh_->rank(),
             ", \"size\": ", mesh_->size(), ", \"pid\": ", getpid(),
             ", \"who\": ", JsonText(own_name()),
             ", \"time\": ", std::to_string(scale.UnixTime(Now())),
             ", \"why\": ", JsonText(why), "}\n");
  const auto add = [&](const CollectiveRecord& record,
                       const std::string& more) {
    text += StrCat("{\"event\": \"collective\", ", JsonMembers(record, scale),
                   more, "}\n");
  };
  for (const auto& record : recorder_.Recent()) add(record, "");
  for (const auto& operation : operations_) {
    add(operation->Described(),
        StrCat(", \"missing\": ", JsonRanks(operation->MissingRanks())));
  }
  {
    std::lock_guard<std::mutex> lock(mutex_);
    for (const auto& operation : accepted_) add(operation->Described(), "");
  }
  text += "{\"event\": \"stacks\"}\n";
  const std::string path =
      StrCat(options_.trace_dir, "/rank", mesh_->rank(), ".trace");
  const Status written = AppendToFile(path, text);
  if (!written.ok()) {
    Log(LogLevel::kWarning, StrCat("flight recorder: ", written.message()));
    return;
  }
  WriteStacks();
  Log(LogLevel::kWarning, StrCat("wrote what this rank was doing to ", path));
}

}  // namespace ring_keras
