#include "tf_ops/matching/signature.h"

#include <bit>

namespace ring_keras {
namespace {

uint64_t Mix(uint64_t hash, uint64_t value) {
  hash = (hash ^ value) * 0x9E3779B97F4A7C15u;
  return hash ^ hash >> 32;
}

}  // namespace

bool UseId::Meets(const UseId& other) const {
  return communicator_id == other.communicator_id && name == other.name &&
         step == other.step;
}

// FNV-1a, finished by a multiplicative mix.
uint64_t KeyOf(const UseId& use) {
  uint64_t hash = 0xcbf29ce484222325u;
  const auto add = [&hash](uint64_t value) {
    hash = (hash ^ value) * 0x100000001b3u;
  };
  for (const char c : use.name) add(static_cast<unsigned char>(c));
  hash = Mix(hash, static_cast<uint64_t>(use.communicator_id));
  return Mix(hash, use.step);
}

uint64_t DataKeyOf(const UseId& use, uint64_t number) {
  return Mix(KeyOf(use), number);
}

bool RowsMayDiffer(CollectiveKind kind) {
  return kind == CollectiveKind::kAllgather ||
         kind == CollectiveKind::kAlltoall;
}

uint64_t SignatureOf(const CollectiveArguments& arguments, uint64_t step,
                     int64_t plan) {
  uint64_t hash = 0;
  const auto add = [&hash](uint64_t value) { hash = Mix(hash, value); };
  add(static_cast<uint64_t>(arguments.kind) << 48 |
      static_cast<uint64_t>(arguments.dtype) << 40 |
      static_cast<uint64_t>(arguments.reduce_op) << 32 |
      static_cast<uint32_t>(arguments.root));
  add(std::bit_cast<uint64_t>(arguments.postscale));
  add(arguments.wire_dtype.has_value()
          ? static_cast<uint64_t>(*arguments.wire_dtype)
          : ~uint64_t{0});
  // A rank that wants even rows agrees with no other than one that has as many,
  // and wants that, too.
  const bool own_rows = RowsMayDiffer(arguments.kind) && !arguments.even_rows;
  for (const TensorView& input : arguments.inputs) {
    add(input.shape.size());
    for (size_t i = own_rows ? 1 : 0; i < input.shape.size(); ++i) {
      add(static_cast<uint64_t>(input.shape[i]));
    }
  }
  if (arguments.even_rows) add(1);
  for (const int64_t root : arguments.roots) add(static_cast<uint64_t>(root));
  if (arguments.kind == CollectiveKind::kReduceScatter) {
    for (const int64_t split : arguments.splits) {
      add(static_cast<uint64_t>(split));
    }
  }
  // Graphs of TensorFlow 1 have plans, and no steps.
  if (step != 0 || plan != 0) {
    add(step);
    add(static_cast<uint64_t>(plan));
  }
  return hash | 1;
}

}  // namespace ring_keras
