// A host tries the addresses of others.
#include "tf_ops/runtime/network_probe.h"

#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/cpp/support/standard_error_capture.h"
#include "tests/cpp/support/test.h"
#include "tf_ops/common/socket.h"
#include "tf_ops/runtime/acceptor_thread.h"

namespace ring_keras {
namespace {

using testing::Soon;

const std::string kProbeToken(32, 'T');
constexpr uint64_t kProbeGeneration = 4;

FileDescriptor ListenHere(int port = 0) {
  auto listener = Listen("127.0.0.1", port);
  EXPECT_OK(listener);
  return std::move(listener.value());
}

// A rank that answers at `listener` whoever holds `token`.
std::unique_ptr<AcceptorThread> Answer(FileDescriptor listener, int rank,
                                       const std::string& token = kProbeToken) {
  rendezvous::HandshakeAcceptorOptions options;
  options.owner = "the test";
  options.purpose = Purpose::kRankToRank;
  options.rank = rank;
  options.generation = kProbeGeneration;
  options.token = token;
  options.handshake_timeout_s = 30;
  options.max_untrusted = 10;
  std::vector<FileDescriptor> listeners;
  listeners.push_back(std::move(listener));
  auto thread = AcceptorThread::Start(
      options, std::move(listeners),
      [](const HandshakeParty&, const std::string&) {
        return rendezvous::Admission();
      },
      [](const rendezvous::TrustedConnection&) {});
  EXPECT_OK(thread);
  return std::move(thread.value());
}

// Host 1, this one, and host 0, which has candidates at these ports.
std::vector<NetworkHost> HostsWith(const std::vector<int>& ports) {
  std::vector<NetworkHost> hosts(2);
  hosts[0].ranks = {0};
  hosts[1].ranks = {1};
  for (int port : ports) {
    hosts[0].candidates.push_back({"lo", "127.0.0.1", port, 0, false});
  }
  return hosts;
}

ProbeOptions OptionsOfRank1() {
  ProbeOptions options;
  options.self = {1, kProbeGeneration, 0};
  options.token = kProbeToken;
  return options;
}

RING_TEST(WhatAnswersWithTheTokenIsReached) {
  testing::StandardErrorCapture capture;
  FileDescriptor good = ListenHere();
  FileDescriptor stranger = ListenHere();
  FileDescriptor another = ListenHere();
  std::vector<int> ports = {LocalPort(good.get()), LocalPort(stranger.get()),
                            LocalPort(another.get()), 0};
  // Nobody listens there any more.
  ports[3] = [] { return LocalPort(ListenHere().get()); }();
  const auto first = Answer(std::move(good), 0);
  const auto second = Answer(std::move(stranger), 0, std::string(32, 'U'));
  const auto third = Answer(std::move(another), 7);

  const auto obstacles =
      ProbeHosts(OptionsOfRank1(), HostsWith(ports), {0}, Soon());

  ASSERT_OK(obstacles);
  ASSERT_EQ(obstacles.value().size(), 3u);
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(obstacles.value()[i].candidate, i + 1);
    EXPECT_FALSE(obstacles.value()[i].reached);
  }
  EXPECT_TRUE(obstacles.value()[2].failure.find("refused") != std::string::npos)
      << obstacles.value()[2].failure;
}

RING_TEST(WhoTakesTheConnectionAndSaysNothingHasItsTime) {
  FileDescriptor silent = ListenHere();
  ProbeOptions options = OptionsOfRank1();
  options.busy_s = 0.2;

  const auto obstacles =
      ProbeHosts(options, HostsWith({LocalPort(silent.get())}), {0}, Soon());

  ASSERT_OK(obstacles);
  ASSERT_EQ(obstacles.value().size(), 1u);
  EXPECT_EQ(obstacles.value()[0].failure, "no answer");
}

// That is no dead network, though another address has answered.
RING_TEST(ARankThatIsSlowToAnswerIsWaitedFor) {
  FileDescriptor good = ListenHere();
  FileDescriptor busy = ListenHere();
  const auto hosts = HostsWith({LocalPort(good.get()), LocalPort(busy.get())});
  const auto first = Answer(std::move(good), 0);
  std::unique_ptr<AcceptorThread> second;
  std::thread late([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    second = Answer(std::move(busy), 0);
  });
  ProbeOptions options = OptionsOfRank1();
  options.settle_s = 0;
  options.busy_s = 60;

  const auto obstacles = ProbeHosts(options, hosts, {0}, Soon());

  late.join();
  ASSERT_OK(obstacles);
  EXPECT_EQ(obstacles.value().size(), 0u);
}

RING_TEST(AnInterruptionEndsIt) {
  FileDescriptor silent = ListenHere();
  const auto hosts = HostsWith({LocalPort(silent.get())});
  const Interruption interruption = [] { return true; };

  EXPECT_EQ(
      ProbeHosts(OptionsOfRank1(), hosts, {0}, Soon().EndedBy(&interruption))
          .status()
          .code(),
      StatusCode::kInterrupted);
  EXPECT_EQ(ProbeHosts(OptionsOfRank1(), hosts, {0}, Deadline::After(0))
                .status()
                .code(),
            StatusCode::kDeadlineExceeded);
}

}  // namespace
}  // namespace ring_keras
