// Announcements: one form each, and what is decoded can be compared.
#include <optional>

#include "tests/fuzz/support/fuzz.h"
#include "tf_ops/matching/announcement.h"
#include "tf_ops/matching/mismatch.h"
#include "tf_ops/matching/signature.h"

namespace ring_keras {
namespace {

Announcement OwnAnnouncement() {
  Announcement own;
  own.use.name = "grads";
  own.kind = CollectiveKind::kAllgather;
  own.dtype = DataType::kFloat32;
  own.shapes = {{3, 4}};
  return own;
}

}  // namespace

std::vector<std::string> Seeds() {
  Announcement full = OwnAnnouncement();
  full.use = {3, "grads/dense/bias", 41, 9};
  full.kind = CollectiveKind::kAllreduce;
  full.wire_dtype = DataType::kFloat16;
  full.shapes = {{}, {0, 7}, {int64_t{1} << 40}};
  full.splits = {1, 0, int64_t{1} << 50};
  full.payload = std::string("\0\1\0", 3);
  full.is_made_up = true;
  full.error = "why not";
  return {Encode(Announcement()), Encode(OwnAnnouncement()), Encode(full)};
}

void FuzzOne(const std::string& input) {
  CheckCanonical(input, DecodeAnnouncement,
                 [](const Announcement& value) { return Encode(value); });
  const auto decoded = DecodeAnnouncement(input);
  if (!decoded.ok()) return;
  const Announcement& announcement = decoded.value();
  KeyOf(announcement.use);
  const std::optional<Announcement> own = OwnAnnouncement();
  static_cast<void>(FindMismatch({own, announcement}, {0, 1}));
  FUZZ_CHECK(!announcement.error.empty() ==
                 !FindMismatch({announcement, announcement}, {0, 1}).ok() ||
             announcement.postscale != announcement.postscale);
}

}  // namespace ring_keras
