// Announcements: what travels, what comes of damage, how ranks disagree.
#include "tf_ops/matching/announcement.h"

#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <type_traits>
#include <vector>

#include "tests/cpp/support/test.h"
#include "tf_ops/matching/mismatch.h"
#include "tf_ops/matching/name_use.h"
#include "tf_ops/matching/signature.h"
#include "tf_ops/transport/frame.h"

namespace ring_keras {
namespace {

Announcement Sample() {
  Announcement sample;
  sample.use.communicator_id = 3;
  sample.use.sequence = (uint64_t{1} << 40) + 41;
  sample.use.name = "grads/dense/bias";
  sample.use.step = 9;
  sample.kind = CollectiveKind::kAllreduce;
  sample.dtype = DataType::kBfloat16;
  sample.memory = Memory::kDevice;
  sample.reduce_op = ReduceOp::kAverage;
  sample.postscale = 0.25;
  sample.wire_dtype = DataType::kFloat16;
  sample.shapes = {{}, {0, 7}, {int64_t{1} << 40}};
  sample.plan = 6;
  sample.even_rows = true;
  sample.splits = {1, 0, int64_t{1} << 50};
  sample.weight = 0.5;
  sample.window_offset = 4096 * 5;
  sample.input_offset = 8192;
  sample.output_offset = 12288;
  sample.payload = std::string("\0\1\0", 3);
  sample.joins = 2;
  sample.last_step = 8;
  sample.is_made_up = true;
  sample.number = 23;
  sample.launch_time = 17;
  sample.error = "why not";
  return sample;
}

// Uses of a name are counted in 64 bits all the way: at a million a second, 32
// are used up after 72 minutes, and ranks that count on disagree with others.
static_assert(std::is_same_v<decltype(UseId::sequence), uint64_t>);
static_assert(std::is_same_v<decltype(NameUse::next_sequence), uint64_t>);
static_assert(std::is_same_v<decltype(NameUse::ended), uint64_t>);
static_assert(std::is_same_v<decltype(NameUse::settled), uint64_t>);
static_assert(std::is_same_v<decltype(NameUse::gone), uint64_t>);
static_assert(std::is_same_v<decltype(WindowPost::use), std::atomic<uint64_t>>);

uint64_t KeyOfAnnounced(const Announcement& announcement) {
  return KeyOf(announcement.use);
}

RING_TEST(AnAnnouncementSurvivesTheJourney) {
  for (const Announcement& sent : {Sample(), Announcement()}) {
    const auto got = DecodeAnnouncement(Encode(sent));
    ASSERT_OK(got);
    EXPECT_EQ(got.value().use.communicator_id, sent.use.communicator_id);
    EXPECT_EQ(got.value().use.sequence, sent.use.sequence);
    EXPECT_EQ(got.value().use.name, sent.use.name);
    EXPECT_EQ(got.value().use.step, sent.use.step);
    EXPECT_EQ(got.value().kind, sent.kind);
    EXPECT_EQ(got.value().dtype, sent.dtype);
    EXPECT_EQ(got.value().memory, sent.memory);
    EXPECT_EQ(got.value().reduce_op, sent.reduce_op);
    EXPECT_EQ(got.value().root, sent.root);
    EXPECT_EQ(got.value().postscale, sent.postscale);
    EXPECT_TRUE(got.value().wire_dtype == sent.wire_dtype);
    EXPECT_TRUE(got.value().shapes == sent.shapes);
    EXPECT_EQ(got.value().plan, sent.plan);
    EXPECT_EQ(got.value().even_rows, sent.even_rows);
    EXPECT_EQ(got.value().splits, sent.splits);
    EXPECT_EQ(got.value().weight, sent.weight);
    EXPECT_EQ(got.value().window_offset, sent.window_offset);
    EXPECT_EQ(got.value().input_offset, sent.input_offset);
    EXPECT_EQ(got.value().output_offset, sent.output_offset);
    EXPECT_EQ(got.value().payload, sent.payload);
    EXPECT_EQ(got.value().joins, sent.joins);
    EXPECT_EQ(got.value().last_step, sent.last_step);
    EXPECT_EQ(got.value().is_made_up, sent.is_made_up);
    EXPECT_EQ(got.value().number, sent.number);
    EXPECT_EQ(got.value().launch_time, sent.launch_time);
    EXPECT_EQ(got.value().error, sent.error);
    EXPECT_EQ(KeyOfAnnounced(got.value()), KeyOfAnnounced(sent));
  }
}

RING_TEST(TheLargestRequestThatIsAnnouncedCanBeRead) {
  Announcement many;
  // Scalars are the most that fit.
  many.shapes.resize((kMaxControlBytes - 200) / sizeof(uint32_t));
  const std::string bytes = Encode(many);
  EXPECT_LE(bytes.size(), kMaxControlBytes);
  EXPECT_OK(DecodeAnnouncement(bytes));
}

RING_TEST(ATruncatedAnnouncementIsRefused) {
  const std::string whole = Encode(Sample());
  for (size_t length = 0; length < whole.size(); ++length) {
    const Status status = DecodeAnnouncement(whole.substr(0, length)).status();
    ASSERT_EQ(status.code(), StatusCode::kInvalidArgument) << length;
  }
  EXPECT_FALSE(DecodeAnnouncement(whole + "x").ok());
}

RING_TEST(WhatHasOneTensorIsNotReadWithAnotherNumber) {
  for (const CollectiveKind kind :
       {CollectiveKind::kAllgather, CollectiveKind::kReduceScatter,
        CollectiveKind::kAlltoall}) {
    Announcement sent;
    sent.kind = kind;
    sent.shapes = {{4}};
    EXPECT_OK(DecodeAnnouncement(Encode(sent)));
    for (const size_t count : {0, 2}) {
      sent.shapes.assign(count, {4});
      sent.error.clear();
      EXPECT_FALSE(DecodeAnnouncement(Encode(sent)).ok()) << count;
      // Says no more than that it cannot take part.
      sent.error = "why not";
      EXPECT_OK(DecodeAnnouncement(Encode(sent)));
    }
  }
}

// What is written has one form.
RING_TEST(ABoolThatIsNeitherIsRefused) {
  Announcement sent = Sample();
  std::string bytes = Encode(sent);
  sent.is_made_up = false;
  const std::string other = Encode(sent);
  size_t at = 0;
  while (bytes[at] == other[at]) ++at;
  bytes[at] = 2;
  EXPECT_FALSE(DecodeAnnouncement(bytes).ok());
}

// Memory that a decoded announcement holds.
size_t HeldBytes(const Announcement& announcement) {
  size_t held = announcement.use.name.capacity() +
                announcement.error.capacity() +
                announcement.splits.capacity() * sizeof(int64_t) +
                announcement.shapes.capacity() * sizeof(Shape);
  for (const Shape& shape : announcement.shapes) {
    held += shape.capacity() * sizeof(int64_t);
  }
  return held;
}

// What is read is in range, and takes memory in proportion to its bytes.
void ExpectHarmless(const std::string& bytes) {
  const auto got = DecodeAnnouncement(bytes);
  if (!got.ok()) return;
  EXPECT_TRUE(static_cast<int>(got.value().kind) < kCollectiveKindCount);
  EXPECT_TRUE(static_cast<int>(got.value().dtype) < kDataTypeCount);
  EXPECT_TRUE(static_cast<int>(got.value().reduce_op) < kReduceOpCount);
  EXPECT_LE(HeldBytes(got.value()), 8 * bytes.size() + 256);
  Describe(got.value().kind, got.value().use.name);
  KeyOfAnnounced(got.value());
}

RING_TEST(DamageNeverCrashesNorCostsMemory) {
  std::mt19937 random(12345);
  const std::string whole = Encode(Sample());
  for (size_t bit = 0; bit < whole.size() * 8; ++bit) {
    std::string flipped = whole;
    flipped[bit / 8] = static_cast<char>(flipped[bit / 8] ^ (1 << bit % 8));
    ExpectHarmless(flipped);
  }
  for (int round = 0; round < 20000; ++round) {
    std::string bytes = whole;
    for (unsigned flips = 1 + random() % 8; flips > 0; --flips) {
      bytes[random() % bytes.size()] = static_cast<char>(random());
    }
    if (random() % 2 == 0) bytes.resize(random() % (bytes.size() + 1));
    ExpectHarmless(bytes);
  }
  for (int round = 0; round < 20000; ++round) {
    std::string bytes(random() % 200, '\0');
    for (char& byte : bytes) {
      // Many zeros, or counts would all be too large to get far.
      byte = static_cast<char>(random() % 3 == 0 ? random() : 0);
    }
    ExpectHarmless(bytes);
  }
}

RING_TEST(TheKeyNamesNameStepAndCommunicator) {
  Announcement sample = Sample();
  sample.use.step = 0;
  Announcement other = sample;
  other.dtype = DataType::kInt8;
  EXPECT_EQ(KeyOfAnnounced(other), KeyOfAnnounced(sample));
  other.use.name += "x";
  EXPECT_NE(KeyOfAnnounced(other), KeyOfAnnounced(sample));
  other = sample;
  ++other.use.step;
  EXPECT_NE(KeyOfAnnounced(other), KeyOfAnnounced(sample));
  other = sample;
  ++other.use.communicator_id;
  EXPECT_NE(KeyOfAnnounced(other), KeyOfAnnounced(sample));
}

// Ranks may remember unequally many uses of a name.
// Also outside of steps, as in graphs of TensorFlow 1.
RING_TEST(TheSignatureNamesStepAndPlan) {
  const CollectiveArguments arguments;
  std::set<uint64_t> signatures;
  for (uint64_t step : {0, 1, 2}) {
    for (int64_t plan : {0, 1, 2}) {
      signatures.insert(SignatureOf(arguments, step, plan));
    }
  }
  EXPECT_EQ(signatures.size(), 9u);
}

// As FindMismatch says which rows may differ.
RING_TEST(TheSignatureLeavesOutRowsThatMayDiffer) {
  const auto of = [](CollectiveKind kind, Shape shape, bool even_rows = false) {
    CollectiveArguments arguments;
    arguments.kind = kind;
    arguments.inputs = {{nullptr, std::move(shape)}};
    arguments.even_rows = even_rows;
    return SignatureOf(arguments, 0, 0);
  };
  const CollectiveKind gather = CollectiveKind::kAllgather;
  EXPECT_EQ(of(gather, {2, 3}), of(gather, {7, 3}));
  EXPECT_NE(of(gather, {2, 3}), of(gather, {2, 4}));
  EXPECT_NE(of(gather, {2, 3}), of(gather, {2}));
  EXPECT_NE(of(gather, {2}), of(gather, {}));
  EXPECT_EQ(of(gather, {2, 3}, true), of(gather, {2, 3}, true));
  EXPECT_NE(of(gather, {2, 3}, true), of(gather, {7, 3}, true));
  EXPECT_NE(of(gather, {2, 3}, true), of(gather, {2, 3}));
  EXPECT_NE(of(gather, {}, true), of(gather, {}));
  const CollectiveKind reduce = CollectiveKind::kAllreduce;
  EXPECT_NE(of(reduce, {2, 3}), of(reduce, {7, 3}));
}

RING_TEST(TheCountOfUsesIsEachRanksOwn) {
  for (uint64_t step : {0, 9}) {
    const UseId use{0, "bucket", 41, step};
    UseId other{0, "bucket", 40, step};
    EXPECT_EQ(KeyOf(other), KeyOf(use));
    EXPECT_TRUE(other.Meets(use));
    other.step = 10;
    EXPECT_NE(KeyOf(other), KeyOf(use));
    EXPECT_FALSE(other.Meets(use));
    EXPECT_NE(DataKeyOf(use, 1), DataKeyOf(use, 2));
    EXPECT_NE(DataKeyOf(use, 1), DataKeyOf(other, 1));
  }
}

std::string Said(const Status& status) {
  return status.ok() ? "none" : status.message();
}

// What ranks {2, 5, 8} hear when the last of them differs by `change`.
std::string Mismatch(const Announcement& common,
                     const std::function<void(Announcement&)>& change) {
  std::vector<std::optional<Announcement>> all(3, common);
  change(*all[2]);
  return Said(FindMismatch(all, {2, 5, 8}));
}

void ExpectSays(const std::string& text, const std::string& what) {
  EXPECT_EQ(text.rfind(what, 0), 0) << text << "\n  expected: " << what;
}

RING_TEST(EveryDisagreementSaysWhatAndWho) {
  Announcement sample;
  sample.use.name = "x";
  sample.kind = CollectiveKind::kAllreduce;
  sample.dtype = DataType::kFloat32;
  sample.shapes = {{2, 3}};
  const std::string start = "allreduce 'x': ";
  const std::string across = " differs across ranks: rank 2 has ";
  const auto mismatch = [&](std::function<void(Announcement&)> change) {
    return Mismatch(sample, change);
  };
  EXPECT_EQ(mismatch([](Announcement&) {}), "none");
  ExpectSays(
      mismatch([](auto& a) { a.kind = CollectiveKind::kAllgather; }),
      start + "collective" + across + "allreduce, rank 8 has allgather. ");
  ExpectSays(mismatch([](auto& a) { a.memory = Memory::kDevice; }),
             start + "memory" + across +
                 "its tensor in host memory (CPU), rank 8 has its tensor on a "
                 "GPU. ");
  ExpectSays(mismatch([](auto& a) { a.dtype = DataType::kFloat16; }),
             start + "dtype" + across + "float32, rank 8 has float16. ");
  ExpectSays(mismatch([](auto& a) { a.reduce_op = ReduceOp::kMax; }),
             start + "reduce op" + across + "sum, rank 8 has max. ");
  ExpectSays(mismatch([](auto& a) { a.root = 1; }),
             start + "root" + across + "0, rank 8 has 1. ");
  ExpectSays(mismatch([](auto& a) { a.postscale = 0.5; }),
             start + "postscale factor" + across + "1, rank 8 has 0.5. ");
  ExpectSays(mismatch([](auto& a) { a.shapes.push_back({1}); }),
             start + "number of tensors" + across + "1, rank 8 has 2. ");
  ExpectSays(mismatch([](auto& a) { a.shapes = {{2, 4}}; }),
             start + "shape" + across + "[2,3], rank 8 has [2,4]. ");
  ExpectSays(mismatch([](auto& a) { a.shapes = {{6}}; }),
             start + "shape" + across + "[2,3], rank 8 has [6]. ");
  EXPECT_EQ(mismatch([](auto& a) { a.error = "no memory"; }),
            start + "rank 8 cannot take part: no memory");
  // A rank's own matters differ.
  EXPECT_EQ(mismatch([](auto& a) {
              a.window_offset = 0;
              a.launch_time = 3;
              a.splits = {1};
            }),
            "none");
  sample.shapes = {{1}, {2, 3}};
  ExpectSays(
      mismatch([](auto& a) { a.shapes[1] = {}; }),
      start + "shape of tensor 1 of 2" + across + "[2,3], rank 8 has []. ");
}

RING_TEST(EachDisagreementHasACodeOfItsOwn) {
  Announcement sample;
  sample.kind = CollectiveKind::kAllreduce;
  sample.shapes = {{2, 3}};
  const auto code = [&](const std::function<void(Announcement&)>& change) {
    std::vector<std::optional<Announcement>> all(2, sample);
    change(*all[1]);
    return FindMismatch(all, {0, 1}).error_code();
  };
  EXPECT_TRUE(code([](auto&) {}) == ErrorCode::kNone);
  EXPECT_TRUE(code([](auto& a) { a.kind = CollectiveKind::kAllgather; }) ==
              ErrorCode::kKindDiffers);
  EXPECT_TRUE(code([](auto& a) { a.memory = Memory::kDevice; }) ==
              ErrorCode::kMemoryDiffers);
  EXPECT_TRUE(code([](auto& a) { a.dtype = DataType::kFloat16; }) ==
              ErrorCode::kDtypeDiffers);
  EXPECT_TRUE(code([](auto& a) { a.reduce_op = ReduceOp::kMax; }) ==
              ErrorCode::kReduceOpDiffers);
  EXPECT_TRUE(code([](auto& a) { a.root = 1; }) == ErrorCode::kRootDiffers);
  EXPECT_TRUE(code([](auto& a) { a.postscale = 0.5; }) ==
              ErrorCode::kScaleDiffers);
  EXPECT_TRUE(code([](auto& a) { a.wire_dtype = DataType::kFloat16; }) ==
              ErrorCode::kCompressionDiffers);
  EXPECT_TRUE(code([](auto& a) { a.shapes.push_back({1}); }) ==
              ErrorCode::kTensorCountDiffers);
  EXPECT_TRUE(code([](auto& a) { a.shapes = {{6}}; }) ==
              ErrorCode::kShapeDiffers);
  EXPECT_TRUE(code([](auto& a) { a.plan = 7; }) == ErrorCode::kPlanDiffers);
  EXPECT_TRUE(code([](auto& a) { a.error = "no memory"; }) ==
              ErrorCode::kCannotTakePart);
}

RING_TEST(RowsMayDifferWhereTheyAreGathered) {
  for (CollectiveKind kind :
       {CollectiveKind::kAllgather, CollectiveKind::kAlltoall}) {
    Announcement sample;
    sample.kind = kind;
    sample.shapes = {{2, 3}};
    EXPECT_EQ(Mismatch(sample, [](auto& a) { a.shapes = {{0, 3}}; }), "none");
    EXPECT_NE(Mismatch(sample, [](auto& a) { a.shapes = {{2, 4}}; }), "none");
    EXPECT_NE(Mismatch(sample, [](auto& a) { a.shapes = {{2}}; }), "none");
  }
}

RING_TEST(RowsMustAgreeWhereOneRankWantsThemEven) {
  Announcement sample;
  sample.use.name = "x";
  sample.kind = CollectiveKind::kAllgather;
  sample.shapes = {{2, 3}};
  const auto want_even = [](Announcement& a) { a.even_rows = true; };
  EXPECT_EQ(Mismatch(sample, want_even), "none");
  std::vector<std::optional<Announcement>> all(3, sample);
  want_even(*all[2]);
  all[1]->shapes = {{4, 3}};
  ExpectSays(
      Said(FindMismatch(all, {2, 5, 8})),
      "allgather 'x': shape differs across ranks: rank 2 has [2,3], rank "
      "5 has [4,3]. ");
}

}  // namespace
}  // namespace ring_keras
