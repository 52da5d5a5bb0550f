#include "tf_ops/transport/mpi/mpi_stream.h"

#include <algorithm>
#include <cstring>

namespace ring_keras {

MpiStream::MpiStream(mpi::Process& process, int peer, int tag)
    : process_(process), calls_(process.calls()), peer_(peer), tag_(tag) {
  for (Piece& piece : incoming_) {
    if (end_.ok()) (void)PostReceive(piece);
  }
}

MpiStream::~MpiStream() {
  using Kind = mpi::Process::Kind;
  for (size_t i = 0; i < kPieces; ++i) {
    Piece& piece = incoming_[i];
    // The next one may still take the peer's last message.
    if (i != next_read_ && piece.under_way) calls_.Cancel(&piece.request);
    LetGo(Kind::kReceive, piece);
  }
  for (Piece& piece : outgoing_) LetGo(Kind::kSend, piece);
  for (Direct& direct : direct_receives_) {
    if (direct.failed) continue;
    process_.Keep(Kind::kReceive, direct.request, std::move(direct.owner));
  }
  for (Direct& direct : direct_sends_) {
    if (direct.failed) continue;
    process_.Keep(Kind::kSend, direct.request, std::move(direct.owner));
  }
  if (finished_) process_.Keep(Kind::kSend, last_, nullptr);
}

void MpiStream::LetGo(mpi::Process::Kind kind, Piece& piece) {
  if (!piece.under_way) return;
  process_.Keep(kind, piece.request, std::move(piece.memory));
}

Status MpiStream::PostReceive(Piece& piece) {
  const int error = calls_.Receive(piece.memory.get(), kPieceBytes, peer_, tag_,
                                   &piece.request);
  piece.under_way = error == mpi::Calls::kSuccess;
  piece.nbytes = 0;
  if (!piece.under_way) Fail(error);
  return end_;
}

ssize_t MpiStream::TryGather(const iovec* parts, int part_count) {
  if (under_way_ == kPieces) EndSends();
  if (finished_ || !end_.ok()) return kClosed;
  if (under_way_ == kPieces) return 0;
  Piece& piece = outgoing_[(first_sent_ + under_way_) % kPieces];
  piece.nbytes = 0;
  for (int i = 0; i < part_count && piece.nbytes < kPieceBytes; ++i) {
    const size_t count = std::min(parts[i].iov_len, kPieceBytes - piece.nbytes);
    std::memcpy(piece.memory.get() + piece.nbytes, parts[i].iov_base, count);
    piece.nbytes += count;
  }
  if (piece.nbytes == 0) return 0;
  const int error = calls_.Send(piece.memory.get(), piece.nbytes, peer_, tag_,
                                &piece.request);
  if (error != mpi::Calls::kSuccess) {
    Fail(error);
    return kClosed;
  }
  piece.under_way = true;
  BeginBusy();
  ++under_way_;
  const auto count = static_cast<ssize_t>(piece.nbytes);
  // A short one has left by now.
  EndSends();
  return count;
}

bool MpiStream::EndSends() {
  bool ended = false;
  while (under_way_ > 0 && end_.ok()) {
    Piece& piece = outgoing_[first_sent_];
    mpi::Progress progress;
    const int error = calls_.Test(&piece.request, &progress);
    if (error != mpi::Calls::kSuccess) {
      piece.under_way = false;
      Fail(error);
      return true;
    }
    if (!progress.done) break;
    piece.under_way = false;
    sent_nbytes_ += piece.nbytes;
    first_sent_ = (first_sent_ + 1) % kPieces;
    --under_way_;
    EndBusy();
    ended = true;
  }
  return ended;
}

void MpiStream::BeginBusy() {
  if (!busy()) busy_since_ = Clock::now();
}

void MpiStream::EndBusy() {
  if (!busy()) busy_ += Clock::now() - busy_since_;
}

void MpiStream::SendDirect(const void* data, size_t nbytes, Owner owner) {
  Direct direct = {{}, nbytes, std::move(owner), false};
  const int error =
      calls_.Send(data, nbytes, peer_, tag_ + kTags, &direct.request);
  direct.failed = error != mpi::Calls::kSuccess;
  if (direct.failed) Fail(error);
  BeginBusy();
  direct_sends_.push_back(std::move(direct));
}

void MpiStream::ReceiveDirect(void* data, size_t nbytes, Owner owner) {
  Direct direct = {{}, nbytes, std::move(owner), false};
  const int error =
      calls_.Receive(data, nbytes, peer_, tag_ + kTags, &direct.request);
  direct.failed = error != mpi::Calls::kSuccess;
  if (direct.failed) Fail(error);
  direct_receives_.push_back(std::move(direct));
}

bool MpiStream::EndFirst(std::deque<Direct>& messages) {
  if (messages.empty()) return false;
  Direct& first = messages.front();
  mpi::Progress progress;
  if (!first.failed) {
    const int error = calls_.Test(&first.request, &progress);
    if (error == mpi::Calls::kSuccess && !progress.done) return false;
    if (error != mpi::Calls::kSuccess) Fail(error);
  }
  messages.pop_front();
  return true;
}

bool MpiStream::EndDirectSend() {
  const size_t nbytes =
      direct_sends_.empty() ? 0 : direct_sends_.front().nbytes;
  if (!EndFirst(direct_sends_)) return false;
  sent_nbytes_ += nbytes;
  EndBusy();
  return true;
}

bool MpiStream::EndDirectReceive() { return EndFirst(direct_receives_); }

ssize_t MpiStream::TryScatter(const iovec* parts, int part_count) {
  if (!end_.ok()) return kClosed;
  if (peer_finished_) {
    if (!direct_receives_.empty()) return 0;
    if (!direct_sends_.empty() &&
        Clock::now() - *peer_finished_ < kLastAnswers) {
      return 0;
    }
    end_ = Status(StatusCode::kPeerLost, "it was closed");
    return kClosed;
  }
  Piece& piece = incoming_[next_read_];
  if (piece.under_way) {
    mpi::Progress progress;
    const int error = calls_.Test(&piece.request, &progress);
    if (error == mpi::Calls::kSuccess && !progress.done) return 0;
    piece.under_way = false;
    if (error != mpi::Calls::kSuccess) {
      Fail(error);
      return kClosed;
    }
    if (progress.nbytes == 0) {
      // What it has sent before is still to come.
      peer_finished_ = Clock::now();
      return TryScatter(parts, part_count);
    }
    piece.nbytes = static_cast<size_t>(progress.nbytes);
    read_nbytes_ = 0;
  }
  size_t total = 0;
  for (int i = 0; i < part_count && read_nbytes_ < piece.nbytes; ++i) {
    const size_t count =
        std::min(parts[i].iov_len, piece.nbytes - read_nbytes_);
    std::memcpy(parts[i].iov_base, piece.memory.get() + read_nbytes_, count);
    read_nbytes_ += count;
    total += count;
  }
  if (read_nbytes_ == piece.nbytes) {
    next_read_ = (next_read_ + 1) % kPieces;
    // What has been read counts, whatever comes of the next.
    (void)PostReceive(piece);
  }
  return static_cast<ssize_t>(total);
}

void MpiStream::Fail(int error) {
  if (end_.ok()) end_ = Status(StatusCode::kPeerLost, calls_.Describe(error));
}

std::pair<std::string, std::string> MpiStream::addresses() const {
  return {StrCat("MPI process ", calls_.rank()), StrCat("MPI process ", peer_)};
}

SentTraffic MpiStream::sent() const {
  Clock::duration busy = busy_;
  if (this->busy()) busy += Clock::now() - busy_since_;
  return {sent_nbytes_, std::chrono::duration<double>(busy).count()};
}

void MpiStream::CloseForWriting() {
  if (finished_ || !end_.ok()) return;
  finished_ =
      calls_.Send(nullptr, 0, peer_, tag_, &last_) == mpi::Calls::kSuccess;
}

}  // namespace ring_keras
