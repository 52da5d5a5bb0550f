// A Stream over MPI's messages.
//
// What is written goes as messages of one tag, in memory of the stream's own;
// some receives are always posted, so that those messages find their place at
// once. When all places of a receiver are full, MPI makes its sender wait. An
// empty message is the end. Long payloads are messages of another tag, between
// the memory of those who send and receive.
#ifndef RING_KERAS_TRANSPORT_MPI_MPI_STREAM_H_
#define RING_KERAS_TRANSPORT_MPI_MPI_STREAM_H_

#include <array>
#include <chrono>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "tf_ops/transport/mpi/process.h"
#include "tf_ops/transport/stream.h"

namespace ring_keras {

class MpiStream : public Stream {
 public:
  // MPI has tags up to 32767 at least, of which a stream uses two.
  static constexpr int kTags = 16384;

  // To the process `peer` of MPI's; `process` outlives the stream. Both ends
  // have the same `tag`, of kTags.
  MpiStream(mpi::Process& process, int peer, int tag);
  ~MpiStream() override;

  ssize_t TryWrite(const void* data, size_t nbytes) override {
    const iovec part = {const_cast<void*>(data), nbytes};
    return TryGather(&part, 1);
  }
  ssize_t TryRead(void* data, size_t nbytes) override {
    const iovec part = {data, nbytes};
    return TryScatter(&part, 1);
  }
  ssize_t TryGather(const iovec* parts, int part_count) override;
  ssize_t TryScatter(const iovec* parts, int part_count) override;
  size_t direct_nbytes() const override { return kDirectBytes; }
  void SendDirect(const void* data, size_t nbytes, Owner owner) override;
  void ReceiveDirect(void* data, size_t nbytes, Owner owner) override;
  bool EndDirectSend() override;
  bool EndDirectReceive() override;
  bool Advance() override { return under_way_ > 0 && EndSends(); }
  // A message may need this process's calls until it has left.
  bool holds_back() const override { return !delivered(); }
  Status end() const override { return end_; }
  std::pair<std::string, std::string> addresses() const override;
  SentTraffic sent() const override;
  bool delivered() const override { return !busy() || !end_.ok(); }
  void CloseForWriting() override;

 private:
  using Clock = std::chrono::steady_clock;

  static constexpr size_t kPieces = 8;
  // Large enough that a message's own cost does not matter, small enough that
  // its bytes stay in a core's cache from one copy to the next, and that Open
  // MPI sends it at once over TCP: up to 64 KiB with a header of its own.
  static constexpr size_t kPieceBytes = (64 << 10) - 256;

  // Shorter ones are there sooner as pieces: they do not wait until the peer
  // has read a header and is ready.
  static constexpr size_t kDirectBytes = (64 << 10) + 1;

  // How long after a peer's end messages to it may take to be over here, which
  // the peer may have received: MPI tells the sender later.
  static constexpr std::chrono::seconds kLastAnswers{1};

  // A message, and its memory.
  struct Piece {
    std::unique_ptr<char[]> memory{new char[kPieceBytes]};
    mpi::Request request;
    size_t nbytes = 0;
    bool under_way = false;
  };

  // A message of somebody else's memory.
  struct Direct {
    mpi::Request request;
    size_t nbytes = 0;
    Owner owner;
    bool failed = false;  // There is none.
  };

  // Whether the first of `messages` is over; drops it then.
  bool EndFirst(std::deque<Direct>& messages);
  bool busy() const { return under_way_ > 0 || !direct_sends_.empty(); }
  void BeginBusy();
  void EndBusy();
  Status PostReceive(Piece& piece);
  // Takes note of sends that have ended; whether one has.
  bool EndSends();
  void Fail(int error);
  void LetGo(mpi::Process::Kind kind, Piece& piece);

  mpi::Process& process_;
  mpi::Calls& calls_;
  const int peer_;
  const int tag_;
  Status end_;

  std::array<Piece, kPieces> outgoing_;
  size_t first_sent_ = 0;  // Of those under way.
  size_t under_way_ = 0;
  mpi::Request last_;  // The empty message.
  bool finished_ = false;
  uint64_t sent_nbytes_ = 0;
  Clock::duration busy_{0};
  Clock::time_point busy_since_;

  std::deque<Direct> direct_sends_;
  std::deque<Direct> direct_receives_;
  // When the peer's empty message had come.
  std::optional<Clock::time_point> peer_finished_;

  std::array<Piece, kPieces> incoming_;
  size_t next_read_ = 0;
  size_t read_nbytes_ = 0;  // Of it.
};

}  // namespace ring_keras

#endif  // RING_KERAS_TRANSPORT_MPI_MPI_STREAM_H_
