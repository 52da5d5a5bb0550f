// Announcements as bytes.
#include <cstring>
#include <type_traits>
#include <utility>

#include "tf_ops/matching/announcement.h"

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

}  // namespace

std::string Encode(const Announcement& announcement) {
  Writer writer;
  writer.Put(announcement.use.communicator_id);
  writer.PutText(announcement.use.name);
  writer.Put(announcement.use.sequence);
  writer.Put(announcement.use.step);
  writer.Put(announcement.kind);
  writer.Put(announcement.dtype);
  writer.Put(announcement.memory);
  writer.Put(announcement.reduce_op);
  writer.Put(announcement.root);
  writer.Put(announcement.postscale);
  writer.Put(NumberOfWire(announcement.wire_dtype));
  writer.Put(static_cast<uint32_t>(announcement.shapes.size()));
  for (const Shape& shape : announcement.shapes) writer.PutList(shape);
  writer.Put(announcement.plan);
  writer.Put(static_cast<uint8_t>(announcement.even_rows));
  writer.PutList(announcement.splits);
  writer.Put(announcement.weight);
  writer.Put(announcement.window_offset);
  writer.Put(announcement.input_offset);
  writer.Put(announcement.output_offset);
  writer.PutText(announcement.payload);
  writer.Put(announcement.joins);
  writer.Put(announcement.last_step);
  writer.Put(static_cast<uint8_t>(announcement.stands_in));
  writer.Put(announcement.number);
  writer.Put(announcement.launch_number);
  writer.PutText(announcement.error);
  return writer.Take();
}

StatusOr<Announcement> DecodeAnnouncement(const std::string& bytes) {
  Announcement announcement;
  Reader reader(bytes);
  reader.Get(&announcement.use.communicator_id);
  reader.GetText(&announcement.use.name);
  reader.Get(&announcement.use.sequence);
  reader.Get(&announcement.use.step);
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
  reader.Get(&announcement.plan);
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
  reader.Get(&announcement.last_step);
  uint8_t stands_in = 0;
  reader.Get(&stands_in);
  announcement.stands_in = stands_in != 0;
  reader.Get(&announcement.number);
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

}  // namespace ring_keras
