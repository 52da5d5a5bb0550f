// Announcements as bytes.
#include <cstring>
#include <type_traits>
#include <utility>

#include "tf_ops/matching/announcement.h"

namespace ring_keras {
namespace {

// What an optional type is on the wire.
constexpr uint8_t kNoDataType = 0xff;

// What most announcements take besides their payload.
constexpr size_t kUsualBytes = 256;

class Writer {
 public:
  // Of about so many bytes.
  explicit Writer(size_t nbytes) { bytes_.reserve(nbytes); }

  template <typename T>
  void operator()(const T& value) {
    static_assert(std::is_trivially_copyable_v<T>);
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof(value));
  }
  void operator()(const std::string& text) {
    PutCount(text.size());
    bytes_ += text;
  }
  void operator()(const std::vector<int64_t>& list) {
    PutCount(list.size());
    bytes_.append(reinterpret_cast<const char*>(list.data()),
                  list.size() * sizeof(int64_t));
  }
  void operator()(const std::vector<Shape>& shapes) {
    PutCount(shapes.size());
    for (const Shape& shape : shapes) (*this)(shape);
  }
  void operator()(const std::optional<DataType>& dtype) {
    (*this)(dtype.has_value() ? static_cast<uint8_t>(*dtype) : kNoDataType);
  }
  std::string Take() { return std::move(bytes_); }

 private:
  void PutCount(size_t count) { (*this)(static_cast<uint32_t>(count)); }

  std::string bytes_;
};

// Reads past the end give zeros and make ok() false.
class Reader {
 public:
  explicit Reader(const std::string& bytes) : bytes_(bytes) {}

  template <typename T>
  void operator()(T& value) {
    static_assert(std::is_trivially_copyable_v<T>);
    GetBytes(&value, sizeof(value));
  }
  // Any byte may come; a bool that is neither must not.
  void operator()(bool& value) {
    uint8_t byte = 0;
    (*this)(byte);
    if (byte > 1) ok_ = false;
    value = byte == 1;
  }
  void operator()(std::string& text) {
    text.resize(GetCount(1));
    GetBytes(text.data(), text.size());
  }
  void operator()(std::vector<int64_t>& list) {
    list.resize(GetCount(sizeof(int64_t)));
    GetBytes(list.data(), list.size() * sizeof(int64_t));
  }
  void operator()(std::vector<Shape>& shapes) {
    shapes.resize(GetCount(sizeof(uint32_t)));
    for (Shape& shape : shapes) (*this)(shape);
  }
  void operator()(std::optional<DataType>& dtype) {
    uint8_t number = kNoDataType;
    (*this)(number);
    dtype.reset();
    if (number != kNoDataType) dtype = static_cast<DataType>(number);
  }
  bool ok() const { return ok_; }
  bool at_end() const { return position_ == bytes_.size(); }

 private:
  // A count of items of at least `item_nbytes`, which the rest can hold: so
  // that damage does not make us allocate.
  uint32_t GetCount(size_t item_nbytes) {
    uint32_t count = 0;
    (*this)(count);
    if (count * item_nbytes > bytes_.size() - position_) ok_ = false;
    return ok_ ? count : 0;
  }
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

// Every field, in its order on the wire.
template <typename Wire, typename AnyAnnouncement>
void Transfer(Wire& wire, AnyAnnouncement& announcement) {
  wire(announcement.use.communicator_id);
  wire(announcement.use.name);
  wire(announcement.use.sequence);
  wire(announcement.use.step);
  wire(announcement.kind);
  wire(announcement.dtype);
  wire(announcement.memory);
  wire(announcement.reduce_op);
  wire(announcement.root);
  wire(announcement.roots);
  wire(announcement.postscale);
  wire(announcement.wire_dtype);
  wire(announcement.shapes);
  wire(announcement.plan);
  wire(announcement.even_rows);
  wire(announcement.splits);
  wire(announcement.weight);
  wire(announcement.window_offset);
  wire(announcement.input_offset);
  wire(announcement.output_offset);
  wire(announcement.payload);
  wire(announcement.joins);
  wire(announcement.last_step);
  wire(announcement.is_made_up);
  wire(announcement.number);
  wire(announcement.launch_time);
  wire(announcement.error);
}

bool HasOneTensor(const Announcement& announcement) {
  return announcement.kind == CollectiveKind::kAllgather ||
         (announcement.kind == CollectiveKind::kReduceScatter &&
          announcement.splits.empty()) ||
         announcement.kind == CollectiveKind::kAlltoall;
}

// Whether its types are ones that there are, and its tensors as many as its
// kind has: what looks at them counts on that.
bool IsKnown(const Announcement& announcement) {
  return static_cast<int>(announcement.kind) < kCollectiveKindCount &&
         static_cast<int>(announcement.dtype) < kDataTypeCount &&
         announcement.memory <= Memory::kDevice &&
         static_cast<int>(announcement.wire_dtype.value_or(DataType{})) <
             kDataTypeCount &&
         static_cast<int>(announcement.reduce_op) < kReduceOpCount &&
         (announcement.shapes.size() == 1 || !announcement.error.empty() ||
          !HasOneTensor(announcement));
}

}  // namespace

std::string Encode(const Announcement& announcement) {
  Writer writer(kUsualBytes + announcement.payload.size());
  Transfer(writer, announcement);
  return writer.Take();
}

StatusOr<Announcement> DecodeAnnouncement(const std::string& bytes) {
  StatusOr<Announcement> announcement{Announcement()};
  Reader reader(bytes);
  Transfer(reader, announcement.value());
  if (!reader.ok() || !reader.at_end() || !IsKnown(announcement.value())) {
    return Status(StatusCode::kInvalidArgument, ErrorCode::kOtherVersion,
                  StrCat("an announcement of ", bytes.size(),
                         " bytes cannot be read. Is the same ring_keras "
                         "installed on every host?"));
  }
  return announcement;
}

}  // namespace ring_keras
