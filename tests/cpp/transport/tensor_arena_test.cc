// Memory of tensors that peers have mapped.
#include "tf_ops/transport/shm/tensor_arena.h"

#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <memory>
#include <string>

#include "tests/cpp/support/standard_error_capture.h"
#include "tests/cpp/support/test.h"

namespace ring_keras {
namespace {

struct Arenas {
  Arenas()
      : own(std::move(TensorArena::Create().value())),
        peers(std::move(
            TensorArena::Attach(getpid(), own->descriptor(), own->nonce())
                .value())) {}

  std::unique_ptr<TensorArena> own;
  std::unique_ptr<TensorArena> peers;
};

RING_TEST(APeerSeesTheSameMemory) {
  const Arenas arenas;
  char* end = arenas.own->data() + kTensorAreaBytes - 8;
  std::strcpy(end, "the end");
  const auto offset = arenas.own->OffsetOf(end, 8);
  ASSERT_TRUE(offset.has_value());
  EXPECT_EQ(std::string(arenas.peers->data() + *offset), "the end");
  std::strcpy(arenas.peers->data() + *offset, "is here");
  EXPECT_EQ(std::string(end), "is here");
}

RING_TEST(APeersMemoryNeedsNoDescriptor) {
  const auto own = std::move(TensorArena::Create().value());
  const int next = dup(0);  // The lowest number that is free.
  close(next);
  const auto peers =
      TensorArena::Attach(getpid(), own->descriptor(), own->nonce());
  ASSERT_OK(peers);
  const int after = dup(0);
  close(after);
  EXPECT_EQ(after, next);
}

RING_TEST(WhatIsNotThereIsNotFound) {
  const Arenas arenas;
  char* data = arenas.own->data();
  EXPECT_TRUE(arenas.own->OffsetOf(data, kTensorAreaBytes).has_value());
  EXPECT_FALSE(arenas.own->OffsetOf(data, kTensorAreaBytes + 1).has_value());
  EXPECT_FALSE(arenas.own->OffsetOf(data + 1, kTensorAreaBytes).has_value());
  EXPECT_FALSE(arenas.own->OffsetOf(data - 1, 1).has_value());
  const int elsewhere = 0;
  EXPECT_FALSE(arenas.own->OffsetOf(&elsewhere, 1).has_value());
  // A peer's numbers may be anything.
  EXPECT_TRUE(TensorArena::IsWithin(kTensorAreaBytes - 8, 8));
  EXPECT_FALSE(TensorArena::IsWithin(kTensorAreaBytes - 8, 9));
  EXPECT_FALSE(TensorArena::IsWithin(~uint64_t{0}, 8));
}

RING_TEST(OtherMemoryIsRefused) {
  const Arenas arenas;
  SegmentNonce nonce = arenas.own->nonce();
  nonce[0] ^= 1;
  const Status other =
      TensorArena::Attach(getpid(), arenas.own->descriptor(), nonce).status();
  EXPECT_EQ(other.code(), StatusCode::kInternal);
  EXPECT_TRUE(other.message().find("is not the memory that was announced") !=
              std::string::npos)
      << other.message();
  FileDescriptor small(memfd_create("small", MFD_CLOEXEC));
  for (int descriptor : {small.get(), 1 << 20}) {
    EXPECT_FALSE(
        TensorArena::Attach(getpid(), descriptor, SegmentNonce{}).ok());
  }
}

// As a peer does that was stopped, and has not heard that it is over.
RING_TEST(WritesToIsolatedPagesAreLost) {
  const Arenas arenas;
  const size_t page = PageBytes();
  const size_t begin = 8 * page;
  const size_t nbytes = 2 * page - 100;  // Ends within a page.
  char* own = arenas.own->data();
  std::memset(own, 1, 16 * page);
  arenas.own->Isolate(begin, nbytes);
  std::memset(arenas.peers->data() + begin, 2, 2 * page);
  for (size_t i = 0; i < 16 * page; ++i) {
    const bool isolated = i >= begin && i < begin + 2 * page;
    ASSERT_EQ(int{own[i]}, isolated ? 0 : 1) << "at " << i;
  }
  std::memset(own + begin, 3, nbytes);
  EXPECT_EQ(int{own[begin]}, 3);
  // No peer is told to look there again.
  EXPECT_TRUE(arenas.own->OffsetOf(own, begin).has_value());
  EXPECT_FALSE(arenas.own->OffsetOf(own, begin + 1).has_value());
  EXPECT_FALSE(arenas.own->OffsetOf(own + begin, 1).has_value());
  EXPECT_FALSE(arenas.own->OffsetOf(own + begin + 2 * page - 1, 1).has_value());
  EXPECT_TRUE(arenas.own->OffsetOf(own + begin + 2 * page, 1).has_value());
}

// What a child has is as it was when it was forked, whatever the parent, or a
// peer, writes later; and what it writes stays its own.
RING_TEST(AChildHasCopiesOfWhatIsInUse) {
  const Arenas arenas;
  const size_t page = PageBytes();
  char* own = arenas.own->data();
  std::memset(own, 1, 8 * page);
  arenas.own->Isolate(page, page);
  std::memset(own + page, 2, page);
  arenas.own->NoteTaken(own, 2 * page);
  arenas.own->NoteTaken(own + 4 * page, page);
  arenas.own->NoteTaken(own + 6 * page, page);
  arenas.own->NoteReturned(own + 6 * page);
  int overwritten[2];
  ASSERT_EQ(pipe(overwritten), 0);
  const pid_t child = fork();
  if (child == 0) {
    char told = 0;
    if (read(overwritten[0], &told, 1) != 1) _exit(2);
    const bool reads = own[0] == 1 && own[page] == 2 && own[5 * page - 1] == 1;
    std::memset(own, 3, 2 * page);
    _exit(reads && own[0] == 3 && own[page] == 3 ? 0 : 1);
  }
  std::memset(own, 4, page);
  std::memset(arenas.peers->data() + 4 * page, 4, page);
  ASSERT_EQ(write(overwritten[1], "!", 1), 1);
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(int{own[0]}, 4);
  EXPECT_EQ(int{own[page]}, 2);
  // What nobody uses is not there, rather than another's.
  const pid_t other = fork();
  if (other == 0) {
    const volatile char* free_page = own + 6 * page;
    _exit(*free_page == 1 ? 0 : 1);
  }
  ASSERT_EQ(waitpid(other, &status, 0), other);
  EXPECT_TRUE(status != 0);
  close(overwritten[0]);
  close(overwritten[1]);
}

// A child that cannot have them is not told another's numbers, and its parent
// says so before.
RING_TEST(AForkWithoutMemoryForCopiesIsReported) {
  const Arenas arenas;
  char* own = arenas.own->data();
  // More than there are addresses.
  for (size_t page = 0; page < 4096; ++page) {
    arenas.own->NoteTaken(own + page * PageBytes(), kTensorAreaBytes);
  }
  const testing::StandardErrorCapture capture;
  const pid_t child = fork();
  if (child == 0) _exit(*static_cast<volatile char*>(own));
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(status != 0);
  const std::string said = capture.Text();
  EXPECT_TRUE(said.find("[RK136] this process forks, and there is no memory "
                        "for the child's copies of large tensors, ") !=
              std::string::npos)
      << said;
}

RING_TEST(AProcessHasOneForGood) {
  EXPECT_TRUE(TensorArena::OfProcess() == nullptr);
  ASSERT_OK(TensorArena::CreateForProcess());
  TensorArena* arena = TensorArena::OfProcess();
  ASSERT_TRUE(arena != nullptr);
  ASSERT_OK(TensorArena::CreateForProcess());
  EXPECT_TRUE(TensorArena::OfProcess() == arena);
}

}  // namespace
}  // namespace ring_keras
