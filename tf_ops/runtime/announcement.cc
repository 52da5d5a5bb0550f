#include "tf_ops/runtime/announcement.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <type_traits>

namespace ring_keras {
namespace {

class Writer {
 public:
  template <typename T>
  void Put(T value) {
    static_assert(std::is_trivially_copyable_v<T>);
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof(value));
  }
  void PutList(const std::vector<int64_t>& list) {
    Put(static_cast<uint32_t>(list.size()));
    bytes_.append(reinterpret_cast<const char*>(list.data()),
                  list.size() * sizeof(int64_t));
  }
  void PutText(const std::string& text) {
    Put(static_cast<uint32_t>(text.size()));
    bytes_ += text;
  }
  std::string Take() { return std::move(bytes_); }

 private:
  std::string bytes_;
};

// Reads past the end give zeros and make ok() false.
class Reader {
 public:
  explicit Reader(const std::string& bytes) : bytes_(bytes) {}
  template <typename T>
  void Get(T* value) {
    GetBytes(value, sizeof(T));
  }
  void GetList(std::vector<int64_t>* list) {
    list->resize(GetCount(sizeof(int64_t)));
    GetBytes(list->data(), list->size() * sizeof(int64_t));
  }
  void GetText(std::string* text) {
    text->resize(GetCount(1));
    GetBytes(text->data(), text->size());
  }
  // A count of items of at least `item_nbytes`, which the rest can hold: so
  // that damage does not make us allocate.
  uint32_t GetCount(size_t item_nbytes) {
    uint32_t count = 0;
    Get(&count);
    if (count * item_nbytes > bytes_.size() - position_) {
      ok_ = false;
    }
    return ok_ ? count : 0;
  }
  bool ok() const { return ok_; }
  bool at_end() const { return position_ == bytes_.size(); }

 private:
  void GetBytes(void* to, size_t nbytes) {
    if (nbytes == 0) return;  // `to` may be null.
    if (nbytes > bytes_.size() - position_) ok_ = false;
    if (!ok_) {
      std::memset(to, 0, nbytes);
    } else {
      std::memcpy(to, bytes_.data() + position_, nbytes);
      position_ += nbytes;
    }
  }
  const std::string& bytes_;
  size_t position_ = 0;
  bool ok_ = true;
};

// What an optional type is on the wire.
constexpr uint8_t kNoDataType = 0xff;

uint8_t NumberOfWire(const std::optional<DataType>& dtype) {
  return dtype.has_value() ? static_cast<uint8_t>(*dtype) : kNoDataType;
}

const char* NameOfWire(const std::optional<DataType>& dtype) {
  return dtype.has_value() ? NameOf(*dtype) : "none";
}

// "rank 0 has ..."
const char* NameOf(Memory memory) {
  return memory == Memory::kDevice ? "its tensor on a GPU"
                                   : "its tensor in host memory (CPU)";
}

bool FirstDimensionMayDiffer(CollectiveKind kind) {
  return kind == CollectiveKind::kAllgather ||
         kind == CollectiveKind::kAlltoall;
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
        rows_may_differ_(FirstDimensionMayDiffer(first.kind)),
        even_rows_(even_rows) {}

  std::optional<std::string> Mismatch() const {
    if (first_.kind != other_.kind) {
      return Say("collective", NameOf(first_.kind), NameOf(other_.kind),
                 "Give different collectives different names, and enter them "
                 "in the same order on every rank.");
    }
    if (first_.memory != other_.memory) {
      return Say("memory", NameOf(first_.memory), NameOf(other_.memory),
                 "Put the tensor on a GPU on every rank, or on the CPU on "
                 "every rank.");
    }
    if (first_.dtype != other_.dtype) {
      return Say("dtype", NameOf(first_.dtype), NameOf(other_.dtype),
                 "Cast to one dtype on every rank.");
    }
    if (first_.reduce_op != other_.reduce_op) {
      return Say("reduce op", NameOf(first_.reduce_op),
                 NameOf(other_.reduce_op), "Use one op on every rank.");
    }
    if (first_.root != other_.root) {
      return Say("root", first_.root, other_.root,
                 "Use one root on every rank.");
    }
    if (first_.postscale != other_.postscale) {
      return Say("postscale factor", first_.postscale, other_.postscale,
                 "Use one factor on every rank.");
    }
    if (first_.wire_dtype != other_.wire_dtype) {
      return Say("compression", NameOfWire(first_.wire_dtype),
                 NameOfWire(other_.wire_dtype),
                 "Use one compression on every rank.");
    }
    if (first_.shapes.size() != other_.shapes.size()) {
      return Say("number of tensors", first_.shapes.size(),
                 other_.shapes.size(), kSameModel);
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
      return Say(what, DebugString(first_.shapes[i]),
                 DebugString(other_.shapes[i]),
                 rows_may_differ_ && even_rows_ ? kSameRows : kSameModel);
    }
    return std::nullopt;
  }

 private:
  static constexpr const char* kSameModel =
      "Build the same model, with the same batch shape, on every rank.";

  static constexpr const char* kSameRows =
      "In a function that XLA compiles every rank needs as many rows. Give all "
      "ranks batches of one size, or turn jit_compile off.";

  template <typename T>
  std::string Say(const std::string& what, const T& a, const T& b,
                  const char* remedy) const {
    return StrCat(Title(first_.kind, first_.name), ": ", what,
                  " differs across ranks: rank ", first_rank_, " has ", a,
                  ", rank ", other_rank_, " has ", b, ". ", remedy);
  }

  const Announcement& first_;
  const Announcement& other_;
  int first_rank_;
  int other_rank_;
  bool rows_may_differ_;
  bool even_rows_;
};

}  // namespace

Announcement MakeAnnouncement(const Request& request, uint32_t sequence) {
  Announcement announcement;
  announcement.communicator_id = request.communicator_id;
  announcement.sequence = sequence;
  announcement.name = request.name;
  announcement.kind = request.kind;
  announcement.dtype = request.dtype;
  announcement.memory =
      request.device_work == nullptr ? Memory::kHost : Memory::kDevice;
  announcement.reduce_op = request.reduce_op;
  announcement.root = request.root;
  announcement.postscale = request.postscale;
  announcement.wire_dtype = request.wire_dtype;
  for (const TensorView& input : request.inputs) {
    announcement.shapes.push_back(input.shape);
  }
  announcement.even_rows = request.even_rows;
  announcement.splits = request.splits;
  announcement.weight = request.weight;
  return announcement;
}

// FNV-1a, finished by a multiplicative mix.
uint64_t KeyOf(int32_t communicator_id, uint32_t sequence,
               const std::string& name) {
  uint64_t hash = 0xcbf29ce484222325u;
  const auto add = [&hash](const void* data, size_t nbytes) {
    const auto* bytes = static_cast<const unsigned char*>(data);
    for (size_t i = 0; i < nbytes; ++i) {
      hash = (hash ^ bytes[i]) * 0x100000001b3u;
    }
  };
  add(&communicator_id, sizeof(communicator_id));
  add(&sequence, sizeof(sequence));
  add(name.data(), name.size());
  hash ^= hash >> 32;
  hash *= 0x9E3779B97F4A7C15u;
  return hash ^ (hash >> 29);
}

uint64_t SignatureOf(const Request& request) {
  uint64_t hash = 0;
  const auto add = [&hash](uint64_t value) {
    hash = (hash ^ value) * 0x9E3779B97F4A7C15u;
    hash ^= hash >> 32;
  };
  add(static_cast<uint64_t>(request.kind) << 48 |
      static_cast<uint64_t>(request.dtype) << 40 |
      static_cast<uint64_t>(request.reduce_op) << 32 |
      static_cast<uint32_t>(request.root));
  add(std::bit_cast<uint64_t>(request.postscale));
  add(NumberOfWire(request.wire_dtype));
  for (const TensorView& input : request.inputs) {
    add(input.shape.size());
    for (int64_t dimension : input.shape) add(static_cast<uint64_t>(dimension));
  }
  return hash | 1;
}

std::string Encode(const Announcement& announcement) {
  Writer writer;
  writer.Put(announcement.communicator_id);
  writer.Put(announcement.sequence);
  writer.PutText(announcement.name);
  writer.Put(announcement.kind);
  writer.Put(announcement.dtype);
  writer.Put(announcement.memory);
  writer.Put(announcement.reduce_op);
  writer.Put(announcement.root);
  writer.Put(announcement.postscale);
  writer.Put(NumberOfWire(announcement.wire_dtype));
  writer.Put(static_cast<uint32_t>(announcement.shapes.size()));
  for (const Shape& shape : announcement.shapes) writer.PutList(shape);
  writer.Put(static_cast<uint8_t>(announcement.even_rows));
  writer.PutList(announcement.splits);
  writer.Put(announcement.weight);
  writer.Put(announcement.window_offset);
  writer.Put(announcement.input_offset);
  writer.Put(announcement.output_offset);
  writer.PutText(announcement.payload);
  writer.Put(announcement.joins);
  writer.Put(static_cast<uint8_t>(announcement.stands_in));
  writer.Put(announcement.launch_number);
  writer.PutText(announcement.error);
  return writer.Take();
}

StatusOr<Announcement> DecodeAnnouncement(const std::string& bytes) {
  Announcement announcement;
  Reader reader(bytes);
  reader.Get(&announcement.communicator_id);
  reader.Get(&announcement.sequence);
  reader.GetText(&announcement.name);
  reader.Get(&announcement.kind);
  reader.Get(&announcement.dtype);
  reader.Get(&announcement.memory);
  reader.Get(&announcement.reduce_op);
  reader.Get(&announcement.root);
  reader.Get(&announcement.postscale);
  uint8_t wire_dtype = kNoDataType;
  reader.Get(&wire_dtype);
  if (wire_dtype != kNoDataType) {
    announcement.wire_dtype = static_cast<DataType>(wire_dtype);
  }
  announcement.shapes.resize(reader.GetCount(sizeof(uint32_t)));
  for (Shape& shape : announcement.shapes) reader.GetList(&shape);
  uint8_t even_rows = 0;
  reader.Get(&even_rows);
  announcement.even_rows = even_rows != 0;
  reader.GetList(&announcement.splits);
  reader.Get(&announcement.weight);
  reader.Get(&announcement.window_offset);
  reader.Get(&announcement.input_offset);
  reader.Get(&announcement.output_offset);
  reader.GetText(&announcement.payload);
  reader.Get(&announcement.joins);
  uint8_t stands_in = 0;
  reader.Get(&stands_in);
  announcement.stands_in = stands_in != 0;
  reader.Get(&announcement.launch_number);
  reader.GetText(&announcement.error);
  const bool known =
      static_cast<int>(announcement.kind) < kCollectiveKindCount &&
      static_cast<int>(announcement.dtype) < kDataTypeCount &&
      announcement.memory <= Memory::kDevice &&
      (wire_dtype == kNoDataType || wire_dtype < kDataTypeCount) &&
      static_cast<int>(announcement.reduce_op) < kReduceOpCount;
  if (!reader.ok() || !reader.at_end() || !known) {
    return Status(StatusCode::kInvalidArgument,
                  StrCat("an announcement of ", bytes.size(),
                         " bytes cannot be read. Is the same ring_keras "
                         "installed on every host?"));
  }
  return announcement;
}

std::optional<std::string> FindMismatch(
    const std::vector<std::optional<Announcement>>& announcements,
    const std::vector<int>& ranks) {
  for (size_t i = 0; i < announcements.size(); ++i) {
    if (!announcements[i]->error.empty()) {
      return StrCat(Title(announcements[i]->kind, announcements[i]->name),
                    ": rank ", ranks[i],
                    " cannot take part: ", announcements[i]->error);
    }
  }
  const bool even_rows = std::any_of(
      announcements.begin(), announcements.end(),
      [](const auto& announcement) { return announcement->even_rows; });
  for (size_t i = 1; i < announcements.size(); ++i) {
    const Comparison comparison(*announcements[0], ranks[0], *announcements[i],
                                ranks[i], even_rows);
    if (auto mismatch = comparison.Mismatch()) return mismatch;
  }
  return std::nullopt;
}

std::string Title(CollectiveKind kind, const std::string& name) {
  return StrCat(NameOf(kind), " '", name, "'");
}

}  // namespace ring_keras
