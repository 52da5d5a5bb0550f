// Tensors of which each rank has some pieces, and takes the others.
#ifndef RING_KERAS_KERNELS_PIECES_H_
#define RING_KERAS_KERNELS_PIECES_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "tf_ops/common/data_type.h"
#include "tf_ops/common/status.h"
#include "tf_ops/runtime/request.h"

namespace ring_keras {

struct Elements {
  void* data;
  int64_t count;
};

// By piece. Those of one whole lie one behind the other, there and here.
struct Pieces {
  std::vector<int64_t> ends;  // Where in its whole it ends.
  std::vector<int64_t>
      wholes;                // Which takes it; -1: none, as it is all of one.
  std::vector<int64_t> own;  // Which of this rank's tensors has it; -1: none.
};

// Gives `request`, whose type is set, a tensor for each piece. One that this
// rank has and that is in none of `own` is in its whole already.
inline Status AddPieces(const Pieces& pieces, const std::vector<Elements>& own,
                        const std::vector<Elements>& wholes, Request* request) {
  const auto size = static_cast<int64_t>(SizeOf(request->dtype));
  const auto has = [](const std::vector<Elements>& tensors, int64_t number) {
    return number < static_cast<int64_t>(tensors.size());
  };
  int64_t begin = 0;
  for (size_t i = 0; i < pieces.ends.size(); ++i) {
    const int64_t whole = pieces.wholes[i];
    const int64_t apart = pieces.own[i];
    const int64_t end = pieces.ends[i];
    if (i == 0 || whole < 0 || whole != pieces.wholes[i - 1]) begin = 0;
    const bool is_known = has(wholes, whole) && has(own, apart) &&
                          (whole >= 0 || apart >= 0) && begin <= end &&
                          (whole < 0 || end <= wholes[whole].count) &&
                          (apart < 0 || own[apart].count == end - begin);
    if (!is_known) {
      const auto count = [&](const std::vector<Elements>& tensors, int64_t n) {
        return n < 0 ? -1 : has(tensors, n) ? tensors[n].count : 0;
      };
      return Status(StatusCode::kInvalidArgument,
                    StrCat("piece ", i, " begins at ", begin, " and ends at ",
                           end, ", but its whole has ", count(wholes, whole),
                           " elements, and what this rank has of it ",
                           count(own, apart), " (-1: nothing)."));
    }
    void* const output =
        whole < 0 ? own[apart].data
                  : static_cast<char*>(wholes[whole].data) + begin * size;
    request->outputs.push_back(output);
    request->inputs.push_back(
        {apart < 0 ? output : own[apart].data, {end - begin}});
    begin = end;
  }
  return Status::Ok();
}

}  // namespace ring_keras

#endif  // RING_KERAS_KERNELS_PIECES_H_
