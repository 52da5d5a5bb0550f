// The patterns by which ranks reduce among themselves, for every size, type and
// length. All ranks run on one thread, joined by loopback sockets.
#include "tf_ops/collectives/lane.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "tests/cpp/collectives/members.h"
#include "tests/cpp/support/test.h"
#include "tf_ops/collectives/wire_format.h"
#include "tf_ops/common/deadline.h"

namespace ring_keras {
namespace {

struct Pattern {
  const char* name;
  LanePattern* run;
};
constexpr Pattern kPatterns[] = {{"doubling", ReduceByDoubling},
                                 {"parts", ReduceByParts},
                                 {"halving", ReduceByHalving},
                                 {"trees", ReduceByTrees},
                                 {"ring", ReduceByRing}};

// Groups of ranks, each of which begins when those before it can do no more.
using Arrivals = std::vector<std::vector<int>>;

std::vector<int> Everyone(size_t size) {
  std::vector<int> ranks(size);
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

// Whether anything has moved.
bool TakeTurns(std::vector<Member>& members, const std::vector<int>& ranks) {
  bool moved = false;
  for (int rank : ranks) {
    moved |= members[rank].mesh->Pump();
    moved |= members[rank].scheduler.RunReady();
  }
  return moved;
}

LaneChunks EqualChunks(const Lane& lane, size_t nbytes) {
  return LaneChunks(nbytes, lane.reduction.element_nbytes(), lane.size());
}

// What a member runs, with its data.
using RunMember = std::function<Task(Lane& lane, std::string& data)>;

// Runs it on all members; each starts with data[rank].
void Reduce(std::vector<Member>& members, const RunMember& run, uint64_t key,
            const ScaledReduction& reduction, const Arrivals& arrivals,
            std::vector<std::string>* data) {
  std::vector<std::unique_ptr<Lane>> lanes;
  std::vector<Task> tasks;
  std::vector<int> present;
  for (const std::vector<int>& group : arrivals) {
    for (int rank : group) {
      Communicator& communicator = *members[rank].communicator;
      lanes.emplace_back(new Lane{communicator, key, communicator.ranks(),
                                  communicator.rank(), reduction});
      tasks.push_back(run(*lanes.back(), (*data)[rank]));
      tasks.back().Start();
      present.push_back(rank);
    }
    // A loopback socket may take a moment to bring what was sent.
    constexpr int kQuietTurns = 3;
    for (int quiet = 0; quiet < kQuietTurns;) {
      quiet = TakeTurns(members, present) ? 0 : quiet + 1;
    }
  }
  const auto all_done = [&] {
    return std::all_of(tasks.begin(), tasks.end(),
                       [](const Task& task) { return task.done(); });
  };
  const Deadline deadline = Soon();
  while (!all_done() && !deadline.Expired()) TakeTurns(members, present);
  ASSERT_EQ(tasks.size(), members.size());
  ASSERT_TRUE(all_done()) << "not in time";
  for (const Task& task : tasks) EXPECT_OK(task.result());
}

void Reduce(std::vector<Member>& members, LanePattern* pattern, uint64_t key,
            const ScaledReduction& reduction, const Arrivals& arrivals,
            std::vector<std::string>* data) {
  const RunMember run = [pattern](Lane& lane, std::string& own) {
    return pattern(lane, own.data(), EqualChunks(lane, own.size()), 0);
  };
  Reduce(members, run, key, reduction, arrivals, data);
}

void Reduce(std::vector<Member>& members, LanePattern* pattern, uint64_t key,
            const ScaledReduction& reduction, std::vector<std::string>* data) {
  Reduce(members, pattern, key, reduction, {Everyone(members.size())}, data);
}

// Small whole numbers, of which every type holds the sums exactly.
double ValueAt(int rank, size_t i) {
  return static_cast<double>(1 + (i * 7 + rank * 3) % 4);
}

double Expected(ReduceOp op, int size, size_t i) {
  double result = ValueAt(0, i);
  for (int rank = 1; rank < size; ++rank) {
    const double value = ValueAt(rank, i);
    switch (op) {
      case ReduceOp::kMin:
        result = std::min(result, value);
        break;
      case ReduceOp::kMax:
        result = std::max(result, value);
        break;
      default:
        result += value;
    }
  }
  return result;
}

template <typename T>
std::string Encoded(const std::vector<double>& values) {
  std::string bytes(values.size() * sizeof(T), '\0');
  for (size_t i = 0; i < values.size(); ++i) {
    const T value = static_cast<T>(values[i]);
    std::memcpy(bytes.data() + i * sizeof(T), &value, sizeof(T));
  }
  return bytes;
}

std::string Encode(DataType dtype, const std::vector<double>& values) {
  switch (dtype) {
    case DataType::kFloat64:
      return Encoded<double>(values);
    case DataType::kInt64:
      return Encoded<int64_t>(values);
    case DataType::kInt32:
      return Encoded<int32_t>(values);
    case DataType::kUint8:
      return Encoded<uint8_t>(values);
    default:
      break;
  }
  const std::string wide = Encoded<float>(values);
  if (dtype == DataType::kFloat32) return wide;
  std::string narrow(values.size() * 2, '\0');
  Narrow(dtype, narrow.data(), wide.data(), 1.0, values.size());
  return narrow;
}

RING_TEST(EveryPatternReducesEverySizeAndType) {
  uint64_t key = 0;
  for (int size : {1, 2, 3, 4, 5, 7}) {
    std::vector<Member> members = Connect(size);
    for (const Pattern& pattern : kPatterns) {
      for (DataType dtype :
           {DataType::kFloat32, DataType::kFloat64, DataType::kFloat16,
            DataType::kBfloat16, DataType::kInt32, DataType::kInt64,
            DataType::kUint8}) {
        for (ReduceOp op : {ReduceOp::kSum, ReduceOp::kMin, ReduceOp::kMax}) {
          for (size_t count : {0, 1, 3, 1001, 70001}) {
            if (count > 3 && op != ReduceOp::kSum) continue;
            CollectiveArguments arguments;
            arguments.dtype = dtype;
            arguments.reduce_op = op;
            arguments.postscale = 2.0;
            const ScaledReduction reduction(arguments);
            std::vector<std::string> data;
            std::vector<double> values(count);
            for (int rank = 0; rank < size; ++rank) {
              for (size_t i = 0; i < count; ++i) values[i] = ValueAt(rank, i);
              data.push_back(Encode(dtype, values));
            }
            Reduce(members, pattern.run, ++key, reduction, &data);
            for (size_t i = 0; i < count; ++i) {
              values[i] = 2 * Expected(op, size, i);
            }
            const std::string expected = Encode(dtype, values);
            for (int rank = 0; rank < size; ++rank) {
              ASSERT_TRUE(data[rank] == expected)
                  << pattern.name << " of " << count << " " << NameOf(dtype)
                  << " on rank " << rank << " of " << size;
            }
          }
        }
      }
    }
  }
}

// Whatever the number of members, and of elements for each: whole numbers whose
// sums are exact, so that one that is added twice, or not at all, shows.
RING_TEST(AnyNumberOfMembersReducesAnyLength) {
  uint64_t key = 0;
  for (int size = 2; size <= 17; ++size) {
    std::vector<Member> members = Connect(size);
    CollectiveArguments arguments;
    arguments.dtype = DataType::kFloat32;
    const ScaledReduction reduction(arguments);
    for (const Pattern& pattern : kPatterns) {
      for (size_t count : {1, size - 1, size, size + 1, 1009, 50021}) {
        std::vector<std::string> data;
        std::vector<double> values(count);
        std::vector<double> sums(count);
        for (int rank = 0; rank < size; ++rank) {
          for (size_t i = 0; i < count; ++i) {
            values[i] = static_cast<double>((size_t{1} << rank) + i % 7);
            sums[i] += values[i];
          }
          data.push_back(Encode(DataType::kFloat32, values));
        }
        Reduce(members, pattern.run, ++key, reduction, &data);
        const std::string expected = Encode(DataType::kFloat32, sums);
        for (int rank = 0; rank < size; ++rank) {
          ASSERT_TRUE(data[rank] == expected)
              << pattern.name << " of " << count << " on rank " << rank
              << " of " << size;
        }
      }
    }
  }
}

// Member m has m elements more than the first, which may have none.
RING_TEST(AtHalfEachMemberHasItsChunkHoweverLong) {
  uint64_t key = 0;
  for (int size = 1; size <= 17; ++size) {
    std::vector<Member> members = Connect(size);
    CollectiveArguments arguments;
    arguments.dtype = DataType::kFloat32;
    arguments.postscale = 2.0;
    const ScaledReduction reduction(arguments);
    for (LanePattern* pattern :
         {ReduceByParts, ReduceByHalving, ReduceByRing}) {
      for (size_t least : {0, 1, 3001}) {
        std::vector<size_t> ends;
        size_t count = 0;
        for (int member = 0; member < size; ++member) {
          count += least + member;
          ends.push_back(count * sizeof(float));
        }
        const LaneChunks chunks(ends);
        std::vector<std::string> data;
        std::vector<double> values(count);
        std::vector<double> sums(count);
        for (int rank = 0; rank < size; ++rank) {
          for (size_t i = 0; i < count; ++i) {
            values[i] = static_cast<double>((size_t{1} << rank) + i % 7);
            sums[i] += 2 * values[i];
          }
          data.push_back(Encode(DataType::kFloat32, values));
        }
        const RunMember run = [&](Lane& lane, std::string& own) {
          lane.scatters = true;
          return pattern(lane, own.data(), chunks, 0);
        };
        Reduce(members, run, ++key, reduction, {Everyone(size)}, &data);
        const std::string expected = Encode(DataType::kFloat32, sums);
        for (int rank = 0; rank < size; ++rank) {
          const Range own = chunks(rank);
          ASSERT_TRUE(data[rank].substr(own.begin, own.size()) ==
                      expected.substr(own.begin, own.size()))
              << "rank " << rank << " of " << size << ", " << count;
        }
      }
    }
  }
}

// All together; one after the other, in every order if they are few; and each
// of them long before, and long after, the others.
std::vector<Arrivals> OrdersOfArrival(int size) {
  constexpr int kFew = 4;
  const std::vector<int> everyone = Everyone(size);
  std::vector<Arrivals> orders = {{everyone}};
  const auto add_in_turn = [&](const std::vector<int>& ranks) {
    orders.emplace_back();
    for (int rank : ranks) orders.back().push_back({rank});
  };
  std::vector<int> order = everyone;
  do {
    add_in_turn(order);
  } while (size <= kFew && std::next_permutation(order.begin(), order.end()));
  add_in_turn({everyone.rbegin(), everyone.rend()});
  for (int one : everyone) {
    std::vector<int> others = everyone;
    std::erase(others, one);
    orders.push_back({{one}, others});
    orders.push_back({others, {one}});
  }
  return orders;
}

// Values whose sum depends on the order of adding: equal on every rank all the
// same, whoever comes first.
RING_TEST(EveryRankGetsTheSameBitsInEveryOrderOfArrival) {
  uint64_t key = 0;
  for (int size : {2, 3, 4, 5, 9}) {
    std::vector<Member> members = Connect(size);
    const std::vector<Arrivals> orders = OrdersOfArrival(size);
    for (const Pattern& pattern : kPatterns) {
      for (DataType dtype : {DataType::kFloat32, DataType::kBfloat16}) {
        CollectiveArguments arguments;
        arguments.dtype = dtype;
        arguments.postscale = 1.0 / 3;
        const ScaledReduction reduction(arguments);
        constexpr size_t kCount = 5003;
        std::vector<std::string> inputs;
        for (int rank = 0; rank < size; ++rank) {
          std::vector<double> values(kCount);
          for (size_t i = 0; i < kCount; ++i) {
            values[i] = 1.0 / static_cast<double>(1 + i * 31 + rank * 17);
          }
          inputs.push_back(Encode(dtype, values));
        }
        std::string expected;
        for (size_t order = 0; order < orders.size(); ++order) {
          std::vector<std::string> data = inputs;
          Reduce(members, pattern.run, ++key, reduction, orders[order], &data);
          if (expected.empty()) expected = data[0];
          for (int rank = 0; rank < size; ++rank) {
            ASSERT_TRUE(data[rank] == expected)
                << pattern.name << " of " << NameOf(dtype) << " on rank "
                << rank << " of " << size << ", in order " << order;
          }
        }
      }
    }
  }
}

RING_TEST(ABrokenCommunicatorEndsThePattern) {
  for (const Pattern& pattern : kPatterns) {
    std::vector<Member> members = Connect(2);
    CollectiveArguments arguments;
    arguments.dtype = DataType::kFloat32;
    const ScaledReduction reduction(arguments);
    std::string data(1 << 20, '\0');
    Communicator& communicator = *members[0].communicator;
    const Lane lane{communicator, 1, communicator.ranks(), 0, reduction};
    Task task =
        pattern.run(lane, data.data(), EqualChunks(lane, data.size()), 0);
    task.Start();
    members[0].mesh->Pump();
    members[0].scheduler.RunReady();
    ASSERT_FALSE(task.done());
    communicator.Break(Status(StatusCode::kPeerLost, "gone"));
    members[0].scheduler.RunReady();
    ASSERT_TRUE(task.done());
    EXPECT_TRUE(task.result().code() == StatusCode::kPeerLost);
  }
}

}  // namespace
}  // namespace ring_keras
