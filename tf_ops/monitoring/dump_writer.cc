#include "tf_ops/monitoring/dump_writer.h"

#include <fcntl.h>
#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>

#include "tf_ops/common/logging.h"
#include "tf_ops/common/socket.h"
#include "tf_ops/monitoring/dump_format.h"
#include "tf_ops/monitoring/stacks.h"

namespace ring_keras {
namespace {

constexpr std::chrono::seconds kAwait(10);

std::string Text(const Dump& dump) {
  const TickScale scale;
  std::string text =
      StrCat("\n{\"event\": \"dump\", \"rank\": ", dump.rank,
             ", \"size\": ", dump.size, ", \"pid\": ", getpid(),
             ", \"who\": ", JsonText(dump.who),
             ", \"time\": ", std::to_string(scale.UnixTime(dump.at)),
             ", \"why\": ", JsonText(dump.why), "}\n");
  const auto add = [&](const CollectiveRecord& record,
                       const std::string& more) {
    text += StrCat("{\"event\": \"collective\", ", JsonMembers(record, scale),
                   more, "}\n");
  };
  for (const CollectiveRecord& record : dump.ended) add(record, "");
  for (const PendingCollective& pending : dump.pending) {
    add(pending.record,
        StrCat(", \"missing\": ", JsonNumbers(pending.missing)));
  }
  return text + "{\"event\": \"stacks\"}\n";
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

void WriteOne(const std::string& path, const Dump& dump) {
  const Status written = AppendToFile(path, Text(dump));
  if (!written.ok()) {
    Log(LogLevel::kWarning, StrCat(Prefix(ErrorCode::kNoDump),
                                   "flight recorder: ", written.message()));
    return;
  }
  std::string text = StrCat("wrote what this rank was doing to ", path);
  if (AskForStacks() == StacksAnswer::kLockHeld) {
    (void)AppendToFile(path, "{\"event\": \"lock held\"}\n");
    WriteStacksWithoutLock();
    text += "; no thread gave Python's lock back";
  }
  if (!dump.remark.empty()) text += "; " + dump.remark;
  Log(LogLevel::kWarning, text);
}

}  // namespace

struct DumpWriter::Shared {
  explicit Shared(std::string to) : path(std::move(to)) {}

  const std::string path;
  std::mutex mutex;  // Guards what follows.
  std::condition_variable changed;
  std::deque<Dump> waiting;
  bool has_thread = false;
  bool writing = false;
  bool ending = false;

  bool idle() const { return waiting.empty() && !writing; }
};

DumpWriter::DumpWriter(std::string path)
    : shared_(std::make_shared<Shared>(std::move(path))) {}

DumpWriter::~DumpWriter() {
  if (!Await()) {
    Log(LogLevel::kWarning,
        StrCat(Prefix(ErrorCode::kNoDump), "flight recorder: ", shared_->path,
               " takes too long to write; its end may be missing"));
  }
  std::lock_guard<std::mutex> lock(shared_->mutex);
  shared_->ending = true;
  shared_->changed.notify_all();
}

void DumpWriter::Write(Dump dump) {
  std::lock_guard<std::mutex> lock(shared_->mutex);
  if (!shared_->has_thread) {
    try {
      std::thread(&ThreadMain, shared_).detach();
    } catch (const std::system_error& error) {
      Log(LogLevel::kWarning,
          StrCat("flight recorder: no thread to write with: ", error.what()));
      return;
    }
    shared_->has_thread = true;
  }
  shared_->waiting.push_back(std::move(dump));
  shared_->changed.notify_all();
}

bool DumpWriter::Await() {
  std::unique_lock<std::mutex> lock(shared_->mutex);
  return shared_->changed.wait_for(lock, kAwait,
                                   [this] { return shared_->idle(); });
}

void DumpWriter::ThreadMain(const std::shared_ptr<Shared>& shared) {
  std::unique_lock<std::mutex> lock(shared->mutex);
  while (true) {
    shared->changed.wait(
        lock, [&] { return shared->ending || !shared->waiting.empty(); });
    if (shared->waiting.empty()) return;
    const Dump dump = std::move(shared->waiting.front());
    shared->waiting.pop_front();
    shared->writing = true;
    lock.unlock();
    WriteOne(shared->path, dump);
    lock.lock();
    shared->writing = false;
    shared->changed.notify_all();
  }
}

}  // namespace ring_keras
