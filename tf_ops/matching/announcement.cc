#include "tf_ops/matching/announcement.h"

#include <utility>

namespace ring_keras {

Announcement MakeAnnouncement(const CollectiveArguments& arguments, UseId use) {
  Announcement announcement;
  announcement.use = std::move(use);
  announcement.kind = arguments.kind;
  announcement.dtype = arguments.dtype;
  announcement.memory =
      arguments.device_work == nullptr ? Memory::kHost : Memory::kDevice;
  announcement.reduce_op = arguments.reduce_op;
  announcement.root = arguments.root;
  announcement.roots = arguments.roots;
  announcement.postscale = arguments.postscale;
  announcement.wire_dtype = arguments.wire_dtype;
  for (const TensorView& input : arguments.inputs) {
    announcement.shapes.push_back(input.shape);
  }
  announcement.even_rows = arguments.even_rows;
  announcement.splits = arguments.splits;
  announcement.weight = arguments.weight;
  return announcement;
}

std::string Describe(CollectiveKind kind, const std::string& name) {
  return StrCat(NameOf(kind), " '", name, "'");
}

}  // namespace ring_keras
