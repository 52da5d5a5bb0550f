#include "tests/stand_in/nccl/exchange.h"

#include <algorithm>
#include <cstring>

namespace ring_keras::stand_in {
namespace {

// Messages begin at a multiple of this, so that no piece cuts an element.
constexpr size_t kMessageAlignment = 64;

size_t Padded(size_t size) {
  return (size + kMessageAlignment - 1) / kMessageAlignment * kMessageAlignment;
}

}  // namespace

void Exchange::Send(int to, const void* data, size_t size) {
  if (size == 0) return;
  Pipe* pipe = &communicator_.region()->pipes[communicator_.rank()][to];
  char* bytes = const_cast<char*>(static_cast<const char*>(data));
  sends_.push_back({pipe, to, bytes, size, 0});
}

void Exchange::Receive(int from, void* data, size_t size) {
  if (size == 0) return;
  Pipe* pipe = &communicator_.region()->pipes[from][communicator_.rank()];
  receives_.push_back({pipe, from, static_cast<char*>(data), size, 0});
}

// True if bytes moved.
bool Exchange::MoveOut(Transfer& transfer) {
  const uint64_t written =
      transfer.pipe->written.load(std::memory_order_relaxed);
  const uint64_t read = transfer.pipe->read.load(std::memory_order_acquire);
  const size_t at = written % kPipeNbytes;
  const size_t room =
      std::min(kPipeNbytes - (written - read), kPipeNbytes - at);
  const size_t size = std::min(room, transfer.size - transfer.done);
  if (size == 0) return false;
  std::memcpy(transfer.pipe->data + at, transfer.data + transfer.done, size);
  transfer.done += size;
  transfer.pipe->written.store(written + Padded(size),
                               std::memory_order_release);
  return true;
}

bool Exchange::MoveIn(Transfer& transfer) {
  const uint64_t read = transfer.pipe->read.load(std::memory_order_relaxed);
  const uint64_t written =
      transfer.pipe->written.load(std::memory_order_acquire);
  const size_t at = read % kPipeNbytes;
  const size_t there = std::min<size_t>(written - read, kPipeNbytes - at);
  const size_t size = std::min(there, transfer.size - transfer.done);
  if (size == 0) return false;
  std::memcpy(transfer.data + transfer.done, transfer.pipe->data + at, size);
  transfer.done += size;
  transfer.pipe->read.store(read + Padded(size), std::memory_order_release);
  return true;
}

// Only the first unfinished transfer of each pipe may move.
template <bool (Exchange::*Move)(Exchange::Transfer&)>
bool Exchange::MoveAll(std::vector<Transfer>& transfers) {
  bool any_moved = false;
  std::vector<Pipe*> busy;
  for (Transfer& transfer : transfers) {
    if (std::find(busy.begin(), busy.end(), transfer.pipe) != busy.end()) {
      continue;
    }
    if ((this->*Move)(transfer)) {
      any_moved = true;
      communicator_.region().Ring(transfer.peer);
    }
    if (transfer.done < transfer.size) busy.push_back(transfer.pipe);
  }
  std::erase_if(transfers, [](const Transfer& transfer) {
    return transfer.done == transfer.size;
  });
  return any_moved;
}

bool Exchange::Finish() {
  while (!sends_.empty() || !receives_.empty()) {
    if (communicator_.aborted()) return false;
    const uint32_t seen = communicator_.Doorbell();
    const bool sent = MoveAll<&Exchange::MoveOut>(sends_);
    const bool received = MoveAll<&Exchange::MoveIn>(receives_);
    if (sent || received || (sends_.empty() && receives_.empty())) continue;
    if (!communicator_.Sleep(seen)) return false;
  }
  return true;
}

}  // namespace ring_keras::stand_in
