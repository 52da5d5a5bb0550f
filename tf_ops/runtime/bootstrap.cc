#include "tf_ops/runtime/bootstrap.h"

#include <algorithm>
#include <map>
#include <utility>

#include "tf_ops/collectives/control_tree.h"
#include "tf_ops/common/logging.h"
#include "tf_ops/rendezvous/tcp_store.h"
#include "tf_ops/runtime/network_addresses.h"
#include "tf_ops/runtime/shared_memory.h"
#include "tf_ops/runtime/transport_choice.h"
#include "tf_ops/transport/shm/ring_stream.h"

namespace ring_keras {
namespace {

// Every rank's value of a topic, by rank.
StatusOr<std::vector<std::string>> Exchange(Store& store,
                                            const std::string& topic,
                                            const std::string& own,
                                            const InitOptions& options,
                                            Deadline deadline) {
  auto values = store.Gather(topic, own, deadline);
  if (values.status().code() != StatusCode::kDeadlineExceeded) return values;
  return Status(
      StatusCode::kDeadlineExceeded, ErrorCode::kRankMissing,
      StrCat("rank ", options.rank, " waited ", options.init_timeout_s,
             " s for ", values.status().message(),
             " to call init(). Did it start, and does it call init()? A slow "
             "start needs a larger RING_KERAS_INIT_TIMEOUT_S."));
}

// Null: its tensors are copied, as if it offered none.
std::unique_ptr<TensorArena> AttachTensors(const PeerCard& card, int rank) {
  if (card.tensors_descriptor < 0) return nullptr;
  auto tensors = TensorArena::Attach(card.pid, card.tensors_descriptor,
                                     card.tensors_nonce);
  if (tensors.ok()) return std::move(tensors.value());
  Log(LogLevel::kInfo, StrCat("tensors are copied between this rank and rank ",
                              rank, ": ", tensors.status().message()));
  return nullptr;
}

void ShowTensors(PeerCard* own) {
  const Status created = TensorArena::CreateForProcess();
  if (!created.ok()) {
    Log(LogLevel::kInfo,
        StrCat("tensors are copied between the ranks of this host: ",
               created.message()));
    return;
  }
  own->tensors_descriptor = TensorArena::OfProcess()->descriptor();
  own->tensors_nonce = TensorArena::OfProcess()->nonce();
}

// Maps the memory of each rank that may share it; a failure means what reaches
// other hosts.
std::vector<MeshPeer> AttachLocalPeers(const std::vector<PeerCard>& cards,
                                       int own_rank) {
  const int size = static_cast<int>(cards.size());
  std::vector<MeshPeer> peers(size);
  for (int rank = 0; rank < size; ++rank) {
    const PeerCard& card = cards[rank];
    if (rank == own_rank || !card.MayShareMemory(cards[own_rank])) continue;
    auto segment =
        Segment::Attach(size, card.pid, card.segment_descriptor, card.nonce);
    Status failure = segment.status();
    if (failure.ok()) {
      auto doorbell = RemoteDoorbell::Open(card.pid, card.doorbell_descriptor,
                                           &segment.value()->header().sleeping);
      failure = doorbell.status();
      if (failure.ok()) {
        peers[rank].segment = std::move(segment.value());
        peers[rank].doorbell = std::move(doorbell.value());
        peers[rank].tensors = AttachTensors(card, rank);
        continue;
      }
    }
    Log(LogLevel::kWarning,
        StrCat(Prefix(ErrorCode::kNoSharedMemory),
               "no shared memory with rank ", rank, " of this host, ",
               card.transport, " instead: ", failure.message()));
  }
  return peers;
}

std::unique_ptr<Pair> MakeSharedPair(Segment& own, MeshPeer& peer, int own_rank,
                                     int peer_rank) {
  std::vector<std::unique_ptr<Stream>> streams;
  streams.push_back(std::make_unique<RingStream>(&peer.segment->inbox(own_rank),
                                                 &own.inbox(peer_rank),
                                                 peer.doorbell.get()));
  return std::make_unique<Pair>(std::move(streams));
}

// The most ranks of other hosts that any rank has.
int MostRemote(const std::vector<int>& hosts) {
  std::map<int, int> counts;
  for (int host : hosts) ++counts[host];
  int fewest = static_cast<int>(hosts.size());
  for (const auto& [host, count] : counts) fewest = std::min(fewest, count);
  return static_cast<int>(hosts.size()) - fewest;
}

NetworkOptions NetworkOptionsOf(const InitOptions& options,
                                const TcpStore& store) {
  NetworkOptions result;
  result.rank = options.rank;
  result.generation = store.generation();
  result.token = options.token;
  result.store_address = store.LocalAddress();
  result.bind_address = options.bind_address;
  result.interfaces = options.interfaces;
  return result;
}

// Connects this rank to all others of a job of several ranks.
class Bootstrapper {
 public:
  Bootstrapper(const InitOptions& options, std::unique_ptr<TcpStore> store,
               Deadline deadline)
      : options_(options), deadline_(deadline), store_(std::move(store)) {}

  StatusOr<Membership> Connect() {
    StatusOr<Membership> membership = Form();
    if (!membership.ok()) {
      // The others wait for this rank: they learn why it does not come.
      store_->Leave("its init() failed: " + membership.status().message());
    }
    return membership;
  }

 private:
  StatusOr<Membership> Form() {
    auto doorbell = Doorbell::Create();
    RING_KERAS_RETURN_IF_ERROR(doorbell.status());
    doorbell_ = std::move(doorbell.value());
    std::unique_ptr<Segment> segment;
    PeerCard own = MakePeerCard(options_.host_name);
    own.tuning = options_.tuning;
    own.autotune = options_.autotune;
    auto transport = MakeTransport(options_, store_->generation(),
                                   [this](Store& store, Deadline deadline) {
                                     return FindBindAddresses(
                                         NetworkOptionsOf(options_, *store_),
                                         cards_, store, deadline);
                                   });
    RING_KERAS_RETURN_IF_ERROR(transport.status());
    transport_ = std::move(transport.value());
    own.transport = transport_->name();
    if (options_.transport != "tcp") {
      auto created = Segment::Create(options_.size);
      if (created.ok()) {
        segment = std::move(created.value());
        own.segment_descriptor = segment->descriptor();
        own.doorbell_descriptor = doorbell_->write_descriptor();
        own.nonce = segment->header().nonce;
        if (options_.shares_tensors) ShowTensors(&own);
      } else {
        Log(LogLevel::kWarning,
            StrCat(Prefix(ErrorCode::kNoSharedMemory), "no shared memory, ",
                   own.transport, " instead: ", created.status().message()));
      }
    }
    RING_KERAS_RETURN_IF_ERROR(ExchangeCards(own));
    // All have the cards by now, so all say the same.
    RING_KERAS_RETURN_IF_ERROR(CheckSameSettings(cards_));
    RING_KERAS_RETURN_IF_ERROR(ShareMemory(segment.get()));
    RING_KERAS_RETURN_IF_ERROR(ConnectTheRest());
    // Nobody starts before all are connected.
    RING_KERAS_RETURN_IF_ERROR(
        Exchange(*store_, "ready", "", options_, deadline_).status());

    Membership membership;
    membership.topology = MakeTopology(options_.rank, cards_);
    for (int rank = 0; rank < options_.size; ++rank) {
      membership.rank_names.push_back(StrCat("rank ", rank, " (host ",
                                             cards_[rank].host_name, ", pid ",
                                             cards_[rank].pid, ")"));
    }
    membership.generation = store_->generation();
    membership.mesh = std::make_unique<Mesh>(
        options_.rank, std::move(doorbell_), std::move(segment),
        std::move(transport_), std::move(peers_), std::move(hosts_));
    membership.mesh->set_own_tensors(TensorArena::OfProcess());
    membership.mesh->set_message_nbytes(message_nbytes_);
    if (late_links_ != nullptr) {
      membership.mesh->MakeWhenNeeded(std::move(late_links_),
                                      options_.max_direct_peers);
    }
    membership.store = std::move(store_);
    return membership;
  }

  Status ExchangeCards(const PeerCard& own) {
    auto texts = Exchange(*store_, "descriptions of ranks", Encode(own),
                          options_, deadline_);
    RING_KERAS_RETURN_IF_ERROR(texts.status());
    for (const std::string& text : texts.value()) {
      StatusOr<PeerCard> card = DecodePeerCard(text);
      RING_KERAS_RETURN_IF_ERROR(card.status());
      cards_.push_back(std::move(card.value()));
    }
    return Status::Ok();
  }

  // Keeps the mappings that work in both directions.
  Status ShareMemory(Segment* own) {
    peers_ = AttachLocalPeers(cards_, options_.rank);
    std::vector<int> unattached;
    for (int rank = 0; rank < options_.size; ++rank) {
      if (rank == options_.rank || peers_[rank].segment != nullptr) continue;
      if (cards_[rank].MayShareMemory(cards_[options_.rank])) {
        unattached.push_back(rank);
      }
    }
    auto texts = Exchange(*store_, "unattached", EncodeRanks(unattached),
                          options_, deadline_);
    RING_KERAS_RETURN_IF_ERROR(texts.status());
    const SharedMemory shared(cards_, texts.value());
    hosts_ = shared.NumberHosts();
    needs_transport_ = !shared.IsComplete();
    for (int rank = 0; rank < options_.size; ++rank) {
      MeshPeer& peer = peers_[rank];
      if (peer.segment == nullptr) continue;
      if (shared.Between(rank, options_.rank)) {
        peer.pair = MakeSharedPair(*own, peer, options_.rank, rank);
      } else {
        peer = MeshPeer();
      }
    }
    return Status::Ok();
  }

  // Takes part even where this rank needs no connection, if any rank does.
  Status ConnectTheRest() {
    if (!needs_transport_) {
      transport_.reset();
      return Status::Ok();
    }
    // All ranks cut their data alike, also those that need no connection.
    message_nbytes_ = transport_->message_nbytes();
    std::vector<int> remote;
    for (int rank = 0; rank < options_.size; ++rank) {
      if (rank != options_.rank && peers_[rank].pair == nullptr) {
        remote.push_back(rank);
      }
    }
    if (MostRemote(hosts_) > options_.max_direct_peers) {
      RING_KERAS_RETURN_IF_ERROR(ConnectLater(remote));
      if (late_links_ != nullptr) return Status::Ok();
    }
    auto links = transport_->Connect(remote, *store_, deadline_);
    RING_KERAS_RETURN_IF_ERROR(links.status());
    for (NewLink& link : links.value()) {
      peers_[link.peer].pair = std::make_unique<Pair>(std::move(link.streams));
    }
    if (remote.empty()) transport_.reset();
    return Status::Ok();
  }

  // If the transport can.
  Status ConnectLater(const std::vector<int>& remote) {
    // Those of all ranks' tree: a rank's last word would wait for its link, and
    // the rank itself may have left before there is one.
    const auto by_host = RanksByHost(hosts_);
    const int host = HostOf(by_host, options_.rank);
    auto links = transport_->ConnectLater(
        remote, ControlTree(by_host, host, options_.rank).remote(),
        [bell = doorbell_.get()] { bell->Ring(); }, *store_, deadline_);
    RING_KERAS_RETURN_IF_ERROR(links.status());
    late_links_ = std::move(links.value());
    if (late_links_ == nullptr) return Status::Ok();
    for (int rank : remote) {
      peers_[rank].pair = std::make_unique<Pair>(
          late_links_->stream_count(),
          [links = late_links_.get(), rank] { links->Open(rank); });
    }
    return Status::Ok();
  }

  const InitOptions& options_;
  const Deadline deadline_;
  std::unique_ptr<TcpStore> store_;
  std::vector<PeerCard> cards_;   // By rank.
  std::vector<int> hosts_;        // By rank.
  bool needs_transport_ = false;  // Some two ranks share no memory.
  std::unique_ptr<Doorbell> doorbell_;
  std::unique_ptr<Transport> transport_;
  size_t message_nbytes_ = Transport::kMessageBytes;
  std::vector<MeshPeer> peers_;             // By rank.
  std::unique_ptr<LinkSource> late_links_;  // Null: all are connected.
};

// A job of one rank needs nobody.
StatusOr<Membership> BootstrapAlone(uint64_t generation) {
  auto doorbell = Doorbell::Create();
  RING_KERAS_RETURN_IF_ERROR(doorbell.status());
  Membership membership;
  membership.mesh =
      std::make_unique<Mesh>(0, std::move(doorbell.value()), nullptr, nullptr,
                             std::vector<MeshPeer>(1), std::vector<int>{0});
  membership.rank_names = {"rank 0"};
  membership.generation = generation;
  return membership;
}

}  // namespace

StatusOr<Membership> Bootstrap(const InitOptions& options) {
  if (options.size == 1) return BootstrapAlone(options.generation);
  const Deadline deadline =
      Deadline::After(options.init_timeout_s)
          .EndedBy(options.interruption ? &options.interruption : nullptr);
  TcpStoreOptions store_options;
  store_options.host = options.store_host;
  store_options.port = options.store_port;
  store_options.token = options.token;
  store_options.rank = options.rank;
  store_options.size = options.size;
  store_options.generation = options.generation;
  store_options.encrypts = options.encrypts;
  store_options.host_name = MakePeerCard(options.host_name).host_name;
  store_options.heartbeat_timeout_s = options.heartbeat_timeout_s;
  store_options.connect_deadline = deadline;
  auto store = ConnectTcpStore(store_options);
  RING_KERAS_RETURN_IF_ERROR(store.status());
  return Bootstrapper(options, std::move(store.value()), deadline).Connect();
}

}  // namespace ring_keras
