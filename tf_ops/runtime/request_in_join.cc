#include "tf_ops/runtime/request_in_join.h"

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace ring_keras {
namespace {

// So begin the names of the runtime's own collectives, after which ranks must
// all do something: make a process set, for example.
constexpr std::string_view kOwnNames = "ring_keras/";

class ZeroedMemory {
 public:
  StatusOr<void*> Allocate(size_t nbytes) {
    void* block = std::calloc(nbytes > 0 ? nbytes : 1, 1);
    if (block == nullptr) {
      return Status(StatusCode::kResourceExhausted,
                    StrCat("no memory for ", nbytes, " bytes of zeros."));
    }
    blocks_.emplace_back(block, &std::free);
    return block;
  }

 private:
  std::vector<std::unique_ptr<void, decltype(&std::free)>> blocks_;
};

bool ReducesZeros(ReduceOp op) {
  return op == ReduceOp::kSum || op == ReduceOp::kAverage;
}

bool IsRoot(const Announcement& broadcast, int rank) {
  const std::vector<int64_t>& roots = broadcast.roots;
  return roots.empty()
             ? broadcast.root == rank
             : std::find(roots.begin(), roots.end(), rank) != roots.end();
}

// Why there is nothing that this rank could bring without being noticed.
Status CheckDispensable(const Announcement& peer, int rank,
                        const Request& join) {
  const std::vector<int64_t>& plans = join.needed_in_plans;
  if (peer.use.in_step() &&
      std::find(plans.begin(), plans.end(), peer.plan) != plans.end()) {
    return Status(StatusCode::kInvalidArgument, join.why_needed);
  }
  std::string why;
  switch (peer.kind) {
    case CollectiveKind::kAllreduce:
    case CollectiveKind::kReduceScatter:
      if (!ReducesZeros(peer.reduce_op)) {
        why = StrCat("no value of its own leaves a ", NameOf(peer.reduce_op),
                     " as it is; sum and average go on without it");
      }
      break;
    case CollectiveKind::kBroadcast:
      if (IsRoot(peer, rank)) why = "it is the root, and has nothing to send";
      break;
    case CollectiveKind::kAllgather:
    case CollectiveKind::kAlltoall:
      if (peer.even_rows) {
        why = "XLA has compiled this for equally many rows of every rank";
      } else if (peer.shapes[0].empty()) {
        why = "a scalar is a row, and it has none to bring";
      }
      break;
    case CollectiveKind::kBarrier:
    case CollectiveKind::kJoin:
      break;
  }
  if (peer.memory == Memory::kDevice) {
    why = "it stands in for tensors in host memory (CPU) only";
  }
  if (peer.use.name.starts_with(kOwnNames)) {
    why = "every rank must call this itself";
  }
  if (why.empty()) return Status::Ok();
  return Status(StatusCode::kInvalidArgument, ErrorCode::kInJoin,
                StrCat("it has run out of data and is in join(), and ", why,
                       ". Do this before the first rank joins, or when all "
                       "have."));
}

Status AddZeros(const std::vector<Shape>& shapes, ZeroedMemory& memory,
                Request& request) {
  for (const Shape& shape : shapes) {
    StatusOr<void*> zeros =
        memory.Allocate(ElementCount(shape) * SizeOf(request.dtype));
    RING_KERAS_RETURN_IF_ERROR(zeros.status());
    request.inputs.push_back({zeros.value(), shape});
    request.outputs.push_back(zeros.value());
  }
  return Status::Ok();
}

}  // namespace

RequestInJoin MakeRequestInJoin(const Announcement& peer, int rank, int size,
                                const Request& join) {
  RequestInJoin made;
  Request& request = made.request;
  auto memory = std::make_shared<ZeroedMemory>();
  made.done = [memory](const Status&) {};
  request.communicator_id = peer.use.communicator_id;
  // All ranks will hear the peer's reason; there is nothing to bring.
  if (!peer.error.empty()) return made;
  request.kind = peer.kind;
  request.able = CheckDispensable(peer, rank, join);
  if (!request.able.ok()) return made;
  request.dtype = peer.dtype;
  request.reduce_op = peer.reduce_op;
  request.root = peer.root;
  request.roots = peer.roots;
  request.postscale = peer.postscale;
  request.wire_dtype = peer.wire_dtype;
  request.plan = peer.plan;
  request.weight = 0;
  request.allocate_output = [memory, dtype = peer.dtype](const Shape& shape) {
    return memory->Allocate(ElementCount(shape) * SizeOf(dtype));
  };
  std::vector<Shape> shapes = peer.shapes;
  const bool gathers = peer.kind == CollectiveKind::kAllgather ||
                       peer.kind == CollectiveKind::kAlltoall;
  if (gathers) shapes[0][0] = 0;
  if (peer.kind == CollectiveKind::kAlltoall) request.splits.assign(size, 0);
  if (peer.kind == CollectiveKind::kReduceScatter) request.splits = peer.splits;
  request.able = AddZeros(shapes, *memory, request);
  return made;
}

}  // namespace ring_keras
