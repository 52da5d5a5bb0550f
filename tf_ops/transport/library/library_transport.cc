#include "tf_ops/transport/library/library_transport.h"

#include <dlfcn.h>

#include <chrono>
#include <thread>
#include <utility>

#include "tf_ops/transport/library/library_stream.h"

namespace ring_keras {
namespace {

constexpr char kSymbol[] = "ring_keras_transport";
constexpr char kAddressesTopic[] = "library/addresses";
constexpr size_t kLibraryErrorBytes = 512;
// Between looks at whether both ends of all connections are there.
constexpr std::chrono::milliseconds kConnectedInterval(1);

Status Unusable(const std::string& path, const std::string& why) {
  return Status(StatusCode::kInvalidArgument, ErrorCode::kNoTransportLibrary,
                StrCat("RING_KERAS_TRANSPORT=", path,
                       " must be auto, tcp, mpi, or the "
                       "path of a library that is a transport for ring_keras: ",
                       why, "."));
}

// What a library has written, whatever it has.
std::string TextOf(const char* text, size_t nbytes) {
  const std::string words(text, nbytes);
  const size_t end = words.find('\0');
  return end == 0 ? "it does not say why" : words.substr(0, end);
}

bool IsComplete(const LibraryCalls& calls) {
  return calls.name != nullptr && calls.open != nullptr &&
         calls.connect != nullptr && calls.connected != nullptr &&
         calls.send != nullptr && calls.receive != nullptr &&
         calls.sent != nullptr && calls.finish != nullptr &&
         calls.failure != nullptr && calls.wait != nullptr &&
         calls.progress != nullptr && calls.lose != nullptr &&
         calls.disconnect != nullptr && calls.close != nullptr;
}

Status CannotConnect(const LibraryCalls& calls, int rank, int peer,
                     const std::string& why) {
  return Status(StatusCode::kPeerLost, ErrorCode::kRankUnreachable,
                StrCat("rank ", rank, " cannot reach rank ", peer, " by ",
                       calls.name, ": ", why));
}

}  // namespace

StatusOr<std::unique_ptr<LibraryTransport>> LibraryTransport::Load(
    const std::string& path, const LibraryJob& job) {
  void* const library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return Unusable(path, dlerror());
  const auto find = reinterpret_cast<decltype(&::ring_keras_transport)>(
      dlsym(library, kSymbol));
  if (find == nullptr) {
    return Unusable(path, StrCat("it has no function ", kSymbol, "()"));
  }
  const LibraryCalls* const calls = find();
  if (calls == nullptr || calls->version != RING_KERAS_TRANSPORT_VERSION) {
    return Unusable(
        path,
        StrCat("this ring_keras takes version ", RING_KERAS_TRANSPORT_VERSION,
               " of ring_keras_transport.h, and it is of version ",
               calls == nullptr ? 0 : calls->version));
  }
  if (!IsComplete(*calls)) return Unusable(path, "it lacks some functions");
  return std::unique_ptr<LibraryTransport>(new LibraryTransport(*calls, job));
}

LibraryTransport::~LibraryTransport() {
  if (transport_ != nullptr) calls_.close(transport_);
}

void LibraryTransport::Lose(int peer) {
  if (peer >= 0) calls_.lose(transport_, peer);
}

StatusOr<std::vector<NewLink>> LibraryTransport::Connect(
    const std::vector<int>& peers, Store& store, Deadline deadline) {
  char address[RING_KERAS_TRANSPORT_ADDRESS_NBYTES] = "";
  char error[kLibraryErrorBytes] = "";
  transport_ =
      calls_.open(&job_, address, sizeof(address), error, sizeof(error));
  if (transport_ == nullptr) {
    return Status(
        StatusCode::kInternal, ErrorCode::kNoTransportLibrary,
        StrCat("rank ", job_.rank, ": the transport ", calls_.name,
               " could not begin: ", TextOf(error, sizeof(error)), "."));
  }
  auto addresses = store.Gather(kAddressesTopic, address, deadline);
  RING_KERAS_RETURN_IF_ERROR(addresses.status());
  std::vector<NewLink> links;
  std::vector<LibraryStream*> open;
  for (int peer : peers) {
    void* const connection =
        calls_.connect(transport_, peer, addresses.value()[peer].c_str(), error,
                       sizeof(error));
    if (connection == nullptr) {
      return CannotConnect(calls_, job_.rank, peer,
                           TextOf(error, sizeof(error)));
    }
    auto stream = std::make_unique<LibraryStream>(calls_, connection);
    open.push_back(stream.get());
    NewLink link;
    link.peer = peer;
    link.streams.push_back(std::move(stream));
    links.push_back(std::move(link));
  }
  for (size_t i = 0; i < links.size();) {
    calls_.progress(transport_);
    const int there =
        calls_.connected(open[i]->connection(), error, sizeof(error));
    if (there > 0) {
      ++i;
      continue;
    }
    const int peer = links[i].peer;
    if (there < 0) {
      return CannotConnect(calls_, job_.rank, peer,
                           TextOf(error, sizeof(error)));
    }
    if (deadline.Expired()) {
      return Status(StatusCode::kDeadlineExceeded, ErrorCode::kRankUnreachable,
                    StrCat("rank ", job_.rank, " has no connection to rank ",
                           peer, " by ", calls_.name, " yet"));
    }
    if (deadline.Interrupted()) return Interrupted();
    // Ends when a rank does, so that nobody waits for the dead.
    RING_KERAS_RETURN_IF_ERROR(store.Pause(deadline.Within(0)));
    std::this_thread::sleep_for(kConnectedInterval);
  }
  return links;
}

}  // namespace ring_keras
