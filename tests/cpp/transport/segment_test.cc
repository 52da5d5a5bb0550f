// Shared memory and doorbells of one rank, found by another through /proc.
#include "tf_ops/transport/shm/segment.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cinttypes>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <string>
#include <thread>

#include "tests/cpp/support/test.h"
#include "tests/cpp/transport/transport_test_support.h"
#include "tf_ops/transport/shm/doorbell.h"
#include "tf_ops/transport/shm/window.h"

namespace ring_keras {
namespace {

constexpr int kSize = 3;

bool Readable(int descriptor, int timeout_ms) {
  pollfd entry = {descriptor, POLLIN, 0};
  return poll(&entry, 1, timeout_ms) == 1;
}

RING_TEST(AnAttachedSegmentIsTheSameMemory) {
  auto own = Segment::Create(kSize);
  ASSERT_OK(own);
  auto attached = Segment::Attach(kSize, getpid(), own.value()->descriptor(),
                                  own.value()->header().nonce);
  ASSERT_OK(attached);
  for (int sender = 0; sender < kSize; ++sender) {
    EXPECT_EQ(attached.value()->inbox(sender).written.load(), 0);
    own.value()->inbox(sender).written.store(100 + sender);
  }
  std::strcpy(own.value()->windows() + kWindowAreaBytes - 8, "the end");
  for (int sender = 0; sender < kSize; ++sender) {
    EXPECT_EQ(attached.value()->inbox(sender).written.load(), 100 + sender);
  }
  EXPECT_EQ(std::string(attached.value()->windows() + kWindowAreaBytes - 8),
            "the end");
}

// Hundreds of ranks on a host would else reach the limit of descriptors.
RING_TEST(AnAttachedSegmentKeepsNoDescriptor) {
  auto own = Segment::Create(kSize);
  ASSERT_OK(own);
  const int next = dup(0);  // The lowest number that is free.
  close(next);
  auto attached = Segment::Attach(kSize, getpid(), own.value()->descriptor(),
                                  own.value()->header().nonce);
  ASSERT_OK(attached);
  const int after = dup(0);
  close(after);
  EXPECT_EQ(after, next);
}

// Another process: it finds the segment and the doorbell by numbers alone.
RING_TEST(AnotherProcessAttachesAndRings) {
  auto own = Segment::Create(kSize);
  ASSERT_OK(own);
  auto doorbell = Doorbell::Create();
  ASSERT_OK(doorbell);
  const int owner = getpid();
  const int segment_descriptor = own.value()->descriptor();
  const int doorbell_descriptor = doorbell.value()->write_descriptor();
  const SegmentNonce nonce = own.value()->header().nonce;
  own.value()->header().sleeping.store(1);
  const pid_t child = fork();
  if (child == 0) {
    auto theirs = Segment::Attach(kSize, owner, segment_descriptor, nonce);
    if (!theirs.ok()) _exit(2);
    auto remote = RemoteDoorbell::Open(owner, doorbell_descriptor,
                                       &theirs.value()->header().sleeping);
    if (!remote.ok()) _exit(3);
    theirs.value()->inbox(1).written.store(4711);
    remote.value()->RingIfSleeping();
    _exit(0);
  }
  EXPECT_TRUE(Readable(doorbell.value()->descriptor(), 30000));
  EXPECT_EQ(own.value()->inbox(1).written.load(), 4711);
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

// Tensors have no place in a core file, nor in a child.
RING_TEST(ASegmentIsNeitherDumpedNorForked) {
  auto own = Segment::Create(kSize);
  ASSERT_OK(own);
  const uintptr_t address = reinterpret_cast<uintptr_t>(own.value()->windows());
  std::ifstream maps("/proc/self/smaps");
  std::string line;
  bool is_here = false;
  int found = 0;
  while (std::getline(maps, line)) {
    uintptr_t begin = 0, end = 0;
    if (std::sscanf(line.c_str(), "%" SCNxPTR "-%" SCNxPTR " ", &begin, &end) ==
        2) {
      is_here = begin <= address && address < end;
    }
    if (!is_here || line.rfind("VmFlags:", 0) != 0) continue;
    ++found;
    EXPECT_TRUE(line.find(" dd") != std::string::npos) << line;
    EXPECT_TRUE(line.find(" dc") != std::string::npos) << line;
  }
  EXPECT_EQ(found, 1);
}

RING_TEST(AWrongNonceIsRefused) {
  auto own = Segment::Create(kSize);
  ASSERT_OK(own);
  SegmentNonce nonce = own.value()->header().nonce;
  nonce[15] ^= 1;
  const Status status =
      Segment::Attach(kSize, getpid(), own.value()->descriptor(), nonce)
          .status();
  EXPECT_EQ(status.code(), StatusCode::kInternal);
  EXPECT_TRUE(status.message().find("is not the memory that was announced") !=
              std::string::npos)
      << status.message();
}

// A process number that means another process here leads to any file at all.
RING_TEST(AnythingButASegmentIsRefused) {
  const SegmentNonce nonce{};
  FileDescriptor empty(memfd_create("empty", MFD_CLOEXEC));
  FileDescriptor small(memfd_create("small", MFD_CLOEXEC));
  ASSERT_EQ(ftruncate(small.get(), 100), 0);
  auto other_size = Segment::Create(kSize + 40);
  ASSERT_OK(other_size);
  auto doorbell = Doorbell::Create();
  ASSERT_OK(doorbell);
  for (int descriptor :
       {empty.get(), small.get(), other_size.value()->descriptor(),
        doorbell.value()->write_descriptor(), 1 << 20}) {
    EXPECT_FALSE(Segment::Attach(kSize, getpid(), descriptor, nonce).ok())
        << descriptor;
  }
}

// To touch what a peer has cut off would be the end of this process.
RING_TEST(ASegmentCannotBeCutShort) {
  auto own = Segment::Create(kSize);
  ASSERT_OK(own);
  const int descriptor = own.value()->descriptor();
  struct stat file = {};
  ASSERT_EQ(fstat(descriptor, &file), 0);
  EXPECT_NE(ftruncate(descriptor, 0), 0);
  EXPECT_NE(fcntl(descriptor, F_ADD_SEALS, F_SEAL_WRITE), 0);
  // One that could be is refused, though all else fits.
  FileDescriptor unsealed(memfd_create("unsealed", MFD_CLOEXEC));
  ASSERT_EQ(ftruncate(unsealed.get(), file.st_size), 0);
  EXPECT_FALSE(
      Segment::Attach(kSize, getpid(), unsealed.get(), SegmentNonce{}).ok());
}

// SIGPIPE is what a process gets for writing to a pipe without readers; Python
// ignores it, unless the user has it do what it does elsewhere.
RING_TEST(TheDoorbellOfADeadPeerDoesNotEndThisProcess) {
  SharedEnd end;
  end.segment->header().sleeping.store(1);
  end.doorbell.reset();
  const auto before = signal(SIGPIPE, SIG_DFL);
  end.remote->RingIfSleeping();
  signal(SIGPIPE, before);
  EXPECT_EQ(end.segment->header().sleeping.load(), 0);
}

RING_TEST(ADoorbellRingsOnceAndOnlyForASleeper) {
  SharedEnd end;
  end.remote->RingIfSleeping();
  EXPECT_FALSE(Readable(end.doorbell->descriptor(), 0));
  end.segment->header().sleeping.store(1);
  end.remote->RingIfSleeping();
  end.remote->RingIfSleeping();
  EXPECT_EQ(end.segment->header().sleeping.load(), 0);
  EXPECT_TRUE(Readable(end.doorbell->descriptor(), 0));
  char rings[8];
  EXPECT_EQ(read(end.doorbell->descriptor(), rings, sizeof(rings)), 1);
}

RING_TEST(AFullDoorbellNeitherBlocksNorIsDeaf) {
  SharedEnd end;
  for (int i = 0; i < 100000; ++i) end.doorbell->Ring();
  EXPECT_TRUE(Readable(end.doorbell->descriptor(), 0));
  end.doorbell->Clear();
  EXPECT_FALSE(Readable(end.doorbell->descriptor(), 0));
}

// What is published before the ring is seen after the wait, every time.
RING_TEST(ASleeperIsWokenEveryTime) {
  constexpr uint64_t kRounds = 3000;
  SharedEnd end;
  std::atomic<uint64_t>& published = end.segment->inbox(0).written;
  std::atomic<uint64_t>& seen = end.segment->inbox(0).read;
  std::thread waker([&] {
    const Deadline deadline = Soon();
    for (uint64_t round = 1; round <= kRounds; ++round) {
      published.store(round, std::memory_order_release);
      end.remote->RingIfSleeping();
      while (seen.load(std::memory_order_acquire) < round) {
        if (deadline.Expired()) return;
        std::this_thread::yield();
      }
    }
  });
  std::atomic<uint32_t>& sleeping = end.segment->header().sleeping;
  for (uint64_t round = 1; round <= kRounds; ++round) {
    while (published.load(std::memory_order_acquire) < round) {
      sleeping.store(1, std::memory_order_relaxed);
      std::atomic_thread_fence(std::memory_order_seq_cst);
      if (published.load(std::memory_order_acquire) >= round) break;
      const bool woken = Readable(end.doorbell->descriptor(), 20000);
      EXPECT_TRUE(woken) << "slept through round " << round;
      if (!woken) break;
      end.doorbell->Clear();
    }
    sleeping.store(0, std::memory_order_relaxed);
    seen.store(round, std::memory_order_release);
  }
  waker.join();
}

}  // namespace
}  // namespace ring_keras
