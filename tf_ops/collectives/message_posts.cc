#include "tf_ops/collectives/message_posts.h"

#include <algorithm>
#include <bit>
#include <utility>

namespace ring_keras {
namespace {

// Odd, so that different numbers stay different.
constexpr uint64_t kSpread = 0xD1B54A32D192ED03u;

uint64_t WithWeight(uint64_t signature, double weight) {
  // Of both zeros one.
  return (signature ^ std::bit_cast<uint64_t>(weight + 0.0) * kSpread) | 1;
}

}  // namespace

MessagePosts::MessagePosts(Communicator& communicator, uint64_t key)
    : communicator_(communicator),
      key_(key),
      route_(communicator.post_route()),
      trip_(route_.trip_count()) {
  for (Came& came : came_) came.resize(route_.trip_count());
  // One of two ranks makes their connection, and that may be who listens.
  for (int trip = 0; trip < route_.trip_count(); ++trip) {
    for (int rank : {route_.trip(trip).to, route_.trip(trip).from}) {
      communicator_.mesh().Open(communicator_.ranks()[rank]);
    }
  }
  const Status status = communicator_.posts().Open(key_, this);
  if (!status.ok()) communicator_.Break(status);
}

MessagePosts::~MessagePosts() {
  int outstanding = 0;
  for (int trip = trip_; trip < route_.trip_count(); ++trip) {
    outstanding += !came(use_)[trip].has_value();
  }
  communicator_.posts().Close(key_, outstanding);
}

void MessagePosts::Enter(uint64_t signature, const Participant& own) {
  ++use_;
  trip_ = 0;
  weight_ = own.weight;
  last_rank_ = communicator_.rank();
  // What is there to be read came before.
  last_at_ = Clock::time_point::max();
  payloads_ = own.payload;
  payload_nbytes_ = payloads_.size();
  has_said_all_ = signature == kCannot;
  signature_ = has_said_all_ ? kCannot : WithWeight(signature, own.weight);
  const int said =
      has_said_all_ ? route_.trip_count() : std::min(1, route_.trip_count());
  for (int trip = 0; trip < said; ++trip) Send(trip);
  const Status status = Advance();
  if (!status.ok()) communicator_.Break(status);
  // It may be entered where nothing can be read.
  if (has_said_all_) return;
  ReadWhatIsThere();
  if (last_rank_ == communicator_.rank()) last_at_ = Clock::now();
}

// As wherever messages are read, there is no going on without memory.
void MessagePosts::ReadWhatIsThere() noexcept { communicator_.mesh().Pump(); }

void MessagePosts::Send(int trip) {
  PostHeader header;
  header.communicator_id = communicator_.id();
  header.last_rank = last_rank_;
  if (last_at_ != Clock::time_point::max()) {
    header.since_last_ns =
        std::chrono::nanoseconds(Clock::now() - last_at_).count();
  }
  header.use = use_;
  header.signature = signature_;
  std::string_view payloads;
  if (signature_ != kCannot) {
    payloads = std::string_view(payloads_).substr(
        0, route_.trip(trip).count * payload_nbytes_);
  }
  communicator_.pair(route_.trip(trip).to)
      .SendControl(FrameType::kPost, key_, EncodePost(header, payloads));
}

Status MessagePosts::OnPost(int rank, PostMessage&& post) {
  const std::optional<int> trip = route_.TripFrom(rank);
  const uint64_t use = post.header.use;
  const PostHeader& header = post.header;
  if (header.last_rank < 0 || header.last_rank >= communicator_.size() ||
      header.since_last_ns < 0) {
    return Status(
        StatusCode::kInternal,
        StrCat("rank ", communicator_.ranks()[rank], " posted that place ",
               header.last_rank, " of ", communicator_.size(), " came last, ",
               header.since_last_ns, " ns ago"));
  }
  // Before this rank has entered its first use, and between two, use_ is the
  // one that has ended.
  if (!trip.has_value() || (use != use_ && use != use_ + 1) ||
      (use == use_ && *trip < trip_) || came(use)[*trip].has_value()) {
    return Status(StatusCode::kInternal,
                  StrCat("rank ", communicator_.ranks()[rank], " posted use ",
                         use, " of a channel, out of turn: rank ",
                         communicator_.ranks()[communicator_.rank()],
                         " is in use ", use_));
  }
  // No longer ago than this clock goes back.
  const auto now = Clock::now();
  const std::chrono::nanoseconds since_last(header.since_last_ns);
  const auto last_at = now - std::min(since_last, now.time_since_epoch());
  came(use)[*trip] = Word{std::move(post), last_at};
  return use == use_ ? Advance() : Status::Ok();
}

Status MessagePosts::Advance() {
  while (!All() && came(use_)[trip_].has_value()) {
    const Word word = *std::exchange(came(use_)[trip_], std::nullopt);
    RING_KERAS_RETURN_IF_ERROR(Merge(word, trip_));
    if (++trip_ < route_.trip_count() && !has_said_all_) Send(trip_);
  }
  return Status::Ok();
}

Status MessagePosts::Merge(const Word& word, int trip) {
  const PostMessage& post = word.post;
  if (word.last_at > last_at_) {
    last_rank_ = post.header.last_rank;
    last_at_ = word.last_at;
  }
  if (post.header.signature != signature_) signature_ = kCannot;
  if (signature_ == kCannot) return Status::Ok();
  const size_t nbytes = route_.trip(trip).count * payload_nbytes_;
  if (post.payloads().size() != nbytes) {
    return Status(
        StatusCode::kInternal, ErrorCode::kOtherVersion,
        StrCat("a rank sent ", post.payloads().size(), " of ", nbytes,
               " bytes. Is the same ring_keras installed on every host?"));
  }
  payloads_ += post.payloads();
  return Status::Ok();
}

std::optional<uint64_t> MessagePosts::data_key() const {
  return key_ + use_ * kSpread;
}

void MessagePosts::Describe(Participants* participants) const {
  participants->key = *data_key();
  for (size_t place = 0; place < participants->size(); ++place) {
    Participant& participant = (*participants)[route_.heard()[place]];
    participant.weight = weight_;
    participant.payload = std::string_view(payloads_).substr(
        place * payload_nbytes_, payload_nbytes_);
  }
}

bool MessagePosts::HasPosted(int rank) const {
  if (All()) return true;
  // Who cannot take part has not listened to those after it.
  const int known = signature_ == kCannot ? 1 : route_.trip(trip_).known;
  if (route_.PlaceOf(rank) < known) return true;
  if (!waiting_.empty() && waiting_[rank] >= use_) return true;
  return !Needs(rank) && route_.TripFrom(rank).has_value();
}

bool MessagePosts::Needs(int rank) const {
  const std::optional<int> trip = route_.TripFrom(rank);
  return trip.has_value() && *trip >= trip_ && !came(use_)[*trip].has_value();
}

bool MessagePosts::IsAhead(int rank) const {
  if (!waiting_.empty() && waiting_[rank] > use_) return true;
  const std::optional<int> trip = route_.TripFrom(rank);
  return trip.has_value() && came(use_ + 1)[*trip].has_value();
}

bool MessagePosts::PeerCannot() const {
  const Came& next = came(use_ + 1);
  return std::any_of(next.begin(), next.end(), [](const auto& word) {
    return word.has_value() && word->post.header.signature == kCannot;
  });
}

void MessagePosts::TellAll() {
  PostHeader header;
  header.communicator_id = communicator_.id();
  header.use = use_;
  communicator_.Tell(FrameType::kWaiting, key_, EncodePost(header, {}));
}

void MessagePosts::OnWaiting(int rank, uint64_t use) {
  waiting_.resize(communicator_.size());
  waiting_[rank] = use;
}

}  // namespace ring_keras
