#include "tf_ops/matching/mismatch.h"

#include <algorithm>

namespace ring_keras {
namespace {

const char* NameOfWire(const std::optional<DataType>& dtype) {
  return dtype.has_value() ? NameOf(*dtype) : "none";
}

// "rank 0 has ..."
const char* NameOf(Memory memory) {
  return memory == Memory::kDevice ? "its tensor on a GPU"
                                   : "its tensor in host memory (CPU)";
}

// Shapes agree where they must.
bool Compatible(bool first_may_differ, const Shape& a, const Shape& b) {
  if (!first_may_differ) return a == b;
  if (a.size() != b.size()) return false;
  for (size_t i = 1; i < a.size(); ++i) {
    if (a[i] != b[i]) return false;
  }
  return true;
}

// Two ranks that disagree, and how to say so.
class Comparison {
 public:
  // `even_rows`: whether any rank wants them.
  Comparison(const Announcement& first, int first_rank,
             const Announcement& other, int other_rank, bool even_rows)
      : first_(first),
        other_(other),
        first_rank_(first_rank),
        other_rank_(other_rank),
        rows_may_differ_(RowsMayDiffer(first.kind)),
        even_rows_(even_rows) {}

  Status Compare() const {
    if (first_.kind != other_.kind) {
      return Say(ErrorCode::kKindDiffers, "collective", NameOf(first_.kind),
                 NameOf(other_.kind),
                 "Give different collectives different names, and enter them "
                 "in the same order on every rank.");
    }
    if (first_.memory != other_.memory) {
      return Say(ErrorCode::kMemoryDiffers, "memory", NameOf(first_.memory),
                 NameOf(other_.memory),
                 "Put the tensor on a GPU on every rank, or on the CPU on "
                 "every rank.");
    }
    if (first_.dtype != other_.dtype) {
      return Say(ErrorCode::kDtypeDiffers, "dtype", NameOf(first_.dtype),
                 NameOf(other_.dtype), "Cast to one dtype on every rank.");
    }
    if (first_.reduce_op != other_.reduce_op) {
      return Say(ErrorCode::kReduceOpDiffers, "reduce op",
                 NameOf(first_.reduce_op), NameOf(other_.reduce_op),
                 "Use one op on every rank.");
    }
    if (first_.root != other_.root) {
      return Say(ErrorCode::kRootDiffers, "root", first_.root, other_.root,
                 "Use one root on every rank.");
    }
    if (first_.roots != other_.roots) {
      return Say(ErrorCode::kRootDiffers, "list of roots",
                 DebugString(first_.roots), DebugString(other_.roots),
                 "Use one list on every rank.");
    }
    if (first_.postscale != other_.postscale) {
      return Say(ErrorCode::kScaleDiffers, "postscale factor", first_.postscale,
                 other_.postscale, "Use one factor on every rank.");
    }
    if (first_.wire_dtype != other_.wire_dtype) {
      return Say(ErrorCode::kCompressionDiffers, "compression",
                 NameOfWire(first_.wire_dtype), NameOfWire(other_.wire_dtype),
                 "Use one compression on every rank.");
    }
    if (first_.shapes.size() != other_.shapes.size()) {
      return Say(ErrorCode::kTensorCountDiffers, "number of tensors",
                 first_.shapes.size(), other_.shapes.size(), kSameModel);
    }
    for (size_t i = 0; i < first_.shapes.size(); ++i) {
      if (Compatible(rows_may_differ_ && !even_rows_, first_.shapes[i],
                     other_.shapes[i])) {
        continue;
      }
      const std::string what =
          first_.shapes.size() == 1
              ? "shape"
              : StrCat("shape of tensor ", i, " of ", first_.shapes.size());
      const bool rows = rows_may_differ_ && even_rows_;
      return Say(rows ? ErrorCode::kRowsDiffer : ErrorCode::kShapeDiffers, what,
                 DebugString(first_.shapes[i]), DebugString(other_.shapes[i]),
                 rows ? kSameRows : kSameModel);
    }
    if (first_.kind == CollectiveKind::kReduceScatter &&
        first_.splits != other_.splits) {
      return Say(ErrorCode::kShapeDiffers, "list of splits",
                 DebugString(first_.splits), DebugString(other_.splits),
                 kSameModel);
    }
    if (first_.plan != other_.plan) {
      return Say(ErrorCode::kPlanDiffers, "plan", first_.plan, other_.plan,
                 "Take the same branches in every step, so that all ranks "
                 "reduce the gradients of the same variables.");
    }
    return Status::Ok();
  }

 private:
  static constexpr const char* kSameModel =
      "Build the same model, with the same batch shape, on every rank.";

  static constexpr const char* kSameRows =
      "Here every rank needs as many rows. Give all ranks tensors of one "
      "shape. "
      "Where XLA has compiled this, it may also do to turn jit_compile off.";

  template <typename T>
  Status Say(ErrorCode error_code, const std::string& what, const T& a,
             const T& b, const char* remedy) const {
    return Status(StatusCode::kRankMismatch, error_code,
                  StrCat(Describe(first_.kind, first_.use.name), ": ", what,
                         " differs across ranks: rank ", first_rank_, " has ",
                         a, ", rank ", other_rank_, " has ", b, ". ", remedy));
  }

  const Announcement& first_;
  const Announcement& other_;
  int first_rank_;
  int other_rank_;
  bool rows_may_differ_;
  bool even_rows_;
};

}  // namespace

Status FindMismatch(
    const std::vector<std::optional<Announcement>>& announcements,
    const std::vector<int>& ranks) {
  for (size_t i = 0; i < announcements.size(); ++i) {
    if (!announcements[i]->error.empty()) {
      return Status(
          StatusCode::kRankMismatch, ErrorCode::kCannotTakePart,
          StrCat(Describe(announcements[i]->kind, announcements[i]->use.name),
                 ": rank ", ranks[i],
                 " cannot take part: ", announcements[i]->error));
    }
  }
  const bool even_rows = std::any_of(
      announcements.begin(), announcements.end(),
      [](const auto& announcement) { return announcement->even_rows; });
  for (size_t i = 1; i < announcements.size(); ++i) {
    const Comparison comparison(*announcements[0], ranks[0], *announcements[i],
                                ranks[i], even_rows);
    RING_KERAS_RETURN_IF_ERROR(comparison.Compare());
  }
  return Status::Ok();
}

}  // namespace ring_keras
