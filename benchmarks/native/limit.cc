// The machine's limit: a sum over two processes with as little as can be around
// it. No names, no checks, no errors: each process knows what the other does.
//
//     limit SOCKET CORES SHARED_FILE
//
// `algorithm=staged`: the numbers are in memory of each process's own. Each
// copies a chunk into shared memory and adds the other's: all the copies that
// two processes need that cannot read each other's memory. `algorithm=parts`:
// the same, but each adds one half and hands the sum back. `algorithm=shared`:
// the numbers are in shared memory from the start; each process adds one half
// and writes both results.

#include <fcntl.h>
#include <immintrin.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdio>

#include "agent.h"

namespace benchmarks {
namespace {

constexpr size_t kChunk = 32 * 1024;  // In floats: it fits into the L2.
// More than fit: lines that the other core has read come back from its
// caches more slowly than from one that both share.
constexpr size_t kSlots = 16;
constexpr size_t kMaxCount = (256 << 20) / sizeof(float);

struct alignas(128) Flag {
  std::atomic<uint64_t> value;

  void Post(uint64_t number) { value.store(number, std::memory_order_release); }
  void Await(uint64_t number) const {
    while (value.load(std::memory_order_acquire) < number) _mm_pause();
  }
};

struct PerRank {
  Flag full;     // Its slot of that number can be read,
  Flag reduced;  // the sum in it too,
  Flag done;     // and what it read of the other's is no longer needed.
  alignas(4096) float slots[kSlots][2][kChunk];
  alignas(4096) float shared[kMaxCount];
};

void Add(float* __restrict to, const float* __restrict from, size_t count) {
  for (size_t i = 0; i < count; ++i) to[i] += from[i];
}

// to = also = to + from
void AddInto(float* __restrict to, float* __restrict also,
             const float* __restrict from, size_t count) {
  for (size_t i = 0; i < count; ++i) also[i] = to[i] = to[i] + from[i];
}

// a = b = a + b
void AddBoth(float* __restrict a, float* __restrict b, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    const float sum = a[i] + b[i];
    a[i] = sum;
    b[i] = sum;
  }
}

class Pair {
 public:
  Pair(int rank, PerRank* ranks)
      : rank_(rank), mine_(ranks[rank]), theirs_(ranks[1 - rank]) {}

  void Staged(float* data, size_t count) {
    for (size_t begin = 0; begin < count; begin += kChunk) {
      const size_t n = std::min(kChunk, count - begin);
      const uint64_t s = ++sequence_;
      if (s > kSlots) theirs_.done.Await(s - kSlots);
      std::memcpy(mine_.slots[s % kSlots][0], data + begin, n * sizeof(float));
      mine_.full.Post(s);
      theirs_.full.Await(s);
      Add(data + begin, theirs_.slots[s % kSlots][0], n);
      mine_.done.Post(s);
    }
  }

  void Parts(float* data, size_t count) {
    const size_t half = count / 2;
    float* const own = data + (rank_ == 0 ? 0 : half);
    float* const other = data + (rank_ == 0 ? half : 0);
    const size_t own_count = rank_ == 0 ? half : count - half;
    const size_t other_count = count - own_count;
    const size_t longer = std::max(own_count, other_count);
    for (size_t begin = 0; begin < longer; begin += kChunk) {
      const size_t n = std::min(kChunk, own_count - std::min(begin, own_count));
      const size_t m =
          std::min(kChunk, other_count - std::min(begin, other_count));
      const uint64_t s = ++sequence_;
      auto& slot = mine_.slots[s % kSlots];
      const auto& their_slot = theirs_.slots[s % kSlots];
      if (s > kSlots) theirs_.done.Await(s - kSlots);
      std::memcpy(slot[0], other + begin, m * sizeof(float));
      mine_.full.Post(s);
      theirs_.full.Await(s);
      AddInto(own + begin, slot[1], their_slot[0], n);
      mine_.reduced.Post(s);
      theirs_.reduced.Await(s);
      std::memcpy(other + begin, their_slot[1], m * sizeof(float));
      mine_.done.Post(s);
    }
  }

  void Shared(size_t count) {
    const uint64_t s = ++sequence_;
    mine_.full.Post(s);
    theirs_.full.Await(s);
    // Both halves start at a cache line; a tiny sum is not worth sharing.
    const size_t half = count < 64 ? count : count / 2 / 16 * 16;
    const size_t begin = rank_ == 0 ? 0 : half;
    const size_t end = rank_ == 0 ? half : count;
    AddBoth(mine_.shared + begin, theirs_.shared + begin, end - begin);
    mine_.done.Post(s);
    theirs_.done.Await(s);
  }

  float* shared() { return mine_.shared; }

 private:
  int rank_;
  PerRank& mine_;
  PerRank& theirs_;
  uint64_t sequence_ = 0;
};

std::vector<double> Measure(const Request& request, Pair& pair, int rank) {
  const size_t count = request.Number("nbytes") / sizeof(float);
  const std::string algorithm = request.Text("algorithm");
  if (request.operation() != "allreduce" || count > kMaxCount ||
      request.Text("dtype", "float32") != "float32") {
    throw Unsupported();
  }
  std::vector<float> own(algorithm == "shared" ? 0 : count);
  float* const data = algorithm == "shared" ? pair.shared() : own.data();
  std::fill_n(data, count, static_cast<float>(rank + 1));
  const auto call = [&] {
    if (algorithm == "shared") {
      pair.Shared(count);
    } else if (algorithm == "staged") {
      pair.Staged(data, count);
    } else {
      pair.Parts(data, count);
    }
  };
  call();
  if (std::any_of(data, data + count, [](float x) { return x != 3; })) {
    throw std::runtime_error("a sum is wrong");
  }
  std::fill_n(data, count, 0.0f);
  return request.Time(call);
}

PerRank* MapShared(const std::string& path) {
  const int file = open(path.c_str(), O_RDWR | O_CREAT, 0600);
  const size_t nbytes = 2 * sizeof(PerRank);
  if (file < 0 || ftruncate(file, static_cast<off_t>(nbytes)) != 0) {
    throw std::runtime_error("cannot make " + path);
  }
  void* const memory =
      mmap(nullptr, nbytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (memory == MAP_FAILED) throw std::runtime_error("cannot map " + path);
  return static_cast<PerRank*>(memory);
}

}  // namespace
}  // namespace benchmarks

int main(int argc, char** argv) {
  if (argc != 4) {
    std::fprintf(stderr, "%s SOCKET CORES SHARED_FILE\n", argv[0]);
    return 2;
  }
  const int rank = std::atoi(std::getenv("BENCHMARK_RANK"));
  if (std::atoi(std::getenv("BENCHMARK_SIZE")) != 2) {
    std::fprintf(stderr, "the limit is that of two processes\n");
    return 2;
  }
  benchmarks::Pin(rank, argv[2]);
  benchmarks::Pair pair(rank, benchmarks::MapShared(argv[3]));
  benchmarks::Answer(argv[1], rank, "of this machine",
                     [&](const benchmarks::Request& request) {
                       return benchmarks::Measure(request, pair, rank);
                     });
  return 0;
}
