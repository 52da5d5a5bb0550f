// A process that may open no more descriptors says so, and what to do.
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tests/cpp/support/run_ranks.h"
#include "tests/cpp/support/standard_error_capture.h"
#include "tests/cpp/support/test.h"
#include "tf_ops/common/deadline.h"
#include "tf_ops/runtime/acceptor_thread.h"

namespace ring_keras {
namespace {

using rendezvous::HandshakeAcceptorOptions;
using rendezvous::TrustedConnection;
using testing::Has;
using testing::Rank;
using testing::RankOptions;
using testing::RunRanks;
using testing::Soon;
using testing::StandardErrorCapture;

// Leaves this process the descriptors that it has, and no others.
class NoMoreDescriptors {
 public:
  NoMoreDescriptors() {
    EXPECT_EQ(getrlimit(RLIMIT_NOFILE, &before_), 0);
    const int lowest_free = dup(STDERR_FILENO);
    close(lowest_free);
    const rlimit now = {static_cast<rlim_t>(lowest_free), before_.rlim_max};
    EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &now), 0);
  }
  ~NoMoreDescriptors() { setrlimit(RLIMIT_NOFILE, &before_); }

 private:
  rlimit before_ = {};
};

Status Swap(Rank& self) {
  std::vector<float> data(3000, 1.0f);
  std::vector<float> output;
  Request request;
  request.kind = CollectiveKind::kAlltoall;
  request.name = "swap";
  request.dtype = DataType::kFloat32;
  request.inputs = {{data.data(), {static_cast<int64_t>(data.size())}}};
  request.allocate_output = [&](const Shape& shape) -> StatusOr<void*> {
    output.resize(ElementCount(shape));
    return static_cast<void*>(output.data());
  };
  return self.engine->Run(std::move(request));
}

// The connection of ranks 1 and 2, which the tree does not need.
RING_TEST(AConnectionForWhichThereIsNoDescriptorIsToldToAll) {
  RankOptions setup;
  setup.size = 3;
  setup.hosts = 3;
  setup.collective_timeout_s = 20;
  setup.max_direct_peers = 0;
  std::vector<std::string> told(setup.size);
  std::optional<NoMoreDescriptors> shortage;
  RunRanks(setup, [&](Rank& self) {
    const auto meet = [&](const std::string& where) {
      ASSERT_OK(self.store->Gather(where, "", Soon()).status());
    };
    meet("all are here");
    if (self.rank == 0) shortage.emplace();
    meet("there are none left");
    // The first time rank 0 has all that it needs.
    Status status;
    while (status.ok()) status = Swap(self);
    EXPECT_EQ(status.code(), StatusCode::kPeerLost);
    told[self.rank] = status.message();
    meet("all have seen it");
    if (self.rank == 0) shortage.reset();
    meet("there are some again");
  });
  for (const std::string& message : told) {
    EXPECT_TRUE(Has(message, "the connection between rank 1 ")) << message;
    EXPECT_TRUE(
        Has(message, "broke: rank 2 cannot open a socket: Too many open files"))
        << message;
    EXPECT_TRUE(Has(message, "`ulimit -n`")) << message;
    EXPECT_FALSE(Has(message, "network")) << message;
  }
}

RING_TEST(WhoCannotAcceptAConnectionSaysWhatToDo) {
  HandshakeAcceptorOptions options;
  options.owner = "rank 4";
  options.token = std::string(32, 't');
  std::vector<FileDescriptor> listeners;
  listeners.push_back(std::move(Listen("127.0.0.1", 0).value()));
  const int port = LocalPort(listeners[0].get());
  auto acceptor = AcceptorThread::Start(
      options, std::move(listeners),
      [](const HandshakeParty&, const std::string&) {
        return rendezvous::Admission{};
      },
      [](TrustedConnection) {});
  ASSERT_OK(acceptor.status());
  const FileDescriptor client(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  std::optional<StandardErrorCapture> capture(std::in_place);
  const NoMoreDescriptors shortage;
  ASSERT_EQ(connect(client.get(), reinterpret_cast<const sockaddr*>(&address),
                    sizeof(address)),
            0);
  std::string logged;
  testing::WaitFor([&] { return !(logged = capture->Text()).empty(); });
  capture.reset();
  EXPECT_TRUE(
      Has(logged, "rank 4 cannot accept a connection: Too many open files"))
      << logged;
  EXPECT_TRUE(Has(logged, "`ulimit -n`")) << logged;
}

}  // namespace
}  // namespace ring_keras
