// Messages between two pairs arrive as they were sent, whatever their order and
// the pace of the streams.
#include <deque>
#include <memory>
#include <utility>

#include "tests/cpp/support/memory_stream.h"
#include "tests/fuzz/support/fuzz.h"
#include "tests/fuzz/support/script.h"
#include "tf_ops/transport/pair.h"

namespace ring_keras {
namespace {

constexpr uint64_t kKey = 7;
constexpr size_t kMaxMessages = 12;

struct Message {
  std::string data;
  std::string got;
  SendOperation send;
  ReceiveOperation receive;
};

void SendAndCompare(Script script) {
  const size_t stream_count = 1 + script.Below(3);
  std::vector<MemoryPipe> there(stream_count);
  std::vector<MemoryPipe> back(stream_count);
  std::vector<std::unique_ptr<Stream>> first_streams;
  std::vector<std::unique_ptr<Stream>> second_streams;
  for (size_t i = 0; i < stream_count; ++i) {
    there[i].chunk_nbytes = 64 + size_t{script.Byte()} * 256;
    first_streams.push_back(
        std::make_unique<MemoryStream>(&there[i], &back[i]));
    second_streams.push_back(
        std::make_unique<MemoryStream>(&back[i], &there[i]));
  }
  Pair first(std::move(first_streams));
  Pair second(std::move(second_streams));
  std::deque<std::string> controls;
  second.set_control_handler(
      [&controls](FrameType type, uint64_t key, std::string payload) {
        FUZZ_CHECK(type == FrameType::kAnnouncement && key == kKey);
        FUZZ_CHECK(!controls.empty() && controls.front() == payload);
        controls.pop_front();
      });

  std::deque<Message> messages;
  const auto receive = [&](size_t tag) {
    Message& message = messages[tag];
    message.got.resize(message.data.size());
    message.receive.target = message.got.data();
    message.receive.nbytes = message.got.size();
    second.Receive(kKey, static_cast<uint32_t>(tag), &message.receive);
  };
  size_t received = 0;
  while (!script.empty() && messages.size() < kMaxMessages) {
    const uint8_t what = script.Byte();
    const size_t count = script.Byte();
    if (what % 4 == 0) {
      controls.push_back(std::string(count, static_cast<char>(what)));
      first.SendControl(FrameType::kAnnouncement, kKey, controls.back());
    } else if (what % 4 == 1 && received < messages.size()) {
      receive(received++);
    } else if (what % 4 == 2) {
      second.Pump();
    } else {
      Message& message = messages.emplace_back();
      // The first may be longer than a frame.
      const bool is_long = what > 250 && messages.size() == 1;
      message.data.resize(count * (is_long ? 1500 : 1));
      for (size_t i = 0; i < message.data.size(); ++i) {
        message.data[i] = static_cast<char>(i * 31 + (i >> 8) * 7 + count);
      }
      first.Send(kKey, static_cast<uint32_t>(messages.size() - 1),
                 message.data.data(), message.data.size(), &message.send);
    }
  }
  while (received < messages.size()) receive(received++);
  for (bool moved = true; moved;) {
    moved = first.Pump();
    moved |= second.Pump();
  }
  FUZZ_CHECK(controls.empty());
  FUZZ_CHECK(first.flushed());
  for (const Message& message : messages) {
    FUZZ_CHECK(message.send.done() && message.receive.done());
    FUZZ_CHECK(message.got == message.data);
  }
}

}  // namespace

std::vector<std::string> Seeds() {
  using namespace std::string_literals;  // NOLINT
  return {"\0\xff\3\x08\0\x20\1\0\2\0\3\xc8"s,
          "\2\1\5\xff\xff\xff\3\1\xfb\x80"s};
}

void FuzzOne(const std::string& input) { SendAndCompare(Script(input)); }

}  // namespace ring_keras
