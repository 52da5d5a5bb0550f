#include "tf_ops/monitoring/dump_format.h"

#include <cstdio>

namespace ring_keras {
namespace {

std::string JsonTime(const char* name, Ticks moment, const TickScale& scale) {
  char text[96];
  if (moment == 0) {
    std::snprintf(text, sizeof(text), ", \"%s\": null", name);
  } else {
    std::snprintf(text, sizeof(text), ", \"%s\": %.9f", name,
                  scale.UnixTime(moment));
  }
  return text;
}

}  // namespace

const char* OutcomeName(const CollectiveRecord& record) {
  if (!record.ended()) return "pending";
  switch (record.outcome) {
    case StatusCode::kOk:
      return "ok";
    case StatusCode::kRankMismatch:
      return "mismatch";
    case StatusCode::kPeerLost:
    case StatusCode::kPeerStopped:
      return "peer lost";
    case StatusCode::kDeadlineExceeded:
      return "deadline";
    case StatusCode::kAborted:
      return "aborted";
    default:
      return "failed";
  }
}

std::string JsonText(const std::string& text) {
  std::string quoted = "\"";
  for (const char character : text) {
    const auto byte = static_cast<unsigned char>(character);
    if (character == '"' || character == '\\') {
      quoted += '\\';
      quoted += character;
    } else if (byte < 0x20) {
      char escaped[8];
      std::snprintf(escaped, sizeof(escaped), "\\u%04x", byte);
      quoted += escaped;
    } else {
      quoted += character;
    }
  }
  return quoted + "\"";
}

std::string JsonNumbers(const std::vector<int>& numbers) {
  std::string text;
  for (const int number : numbers) {
    text += (text.empty() ? "" : ", ") + std::to_string(number);
  }
  return "[" + text + "]";
}

std::string JsonMembers(const CollectiveRecord& record,
                        const TickScale& scale) {
  std::string text = StrCat(
      "\"name\": ", JsonText(record.name), ", \"kind\": \"",
      NameOf(record.kind), "\", \"algorithm\": \"", record.algorithm.name,
      "\", \"step\": ", record.step, ", \"bytes\": ", record.nbytes,
      ", \"ranks\": ", record.size, ", \"last_rank\": ",
      record.last_rank < 0 ? "null" : std::to_string(record.last_rank),
      ", \"outcome\": \"", OutcomeName(record), "\"");
  text += JsonTime("submitted_at", record.submitted_at, scale);
  text += JsonTime("arrived_at", record.arrived_at, scale);
  text += JsonTime("matched_at", record.matched_at, scale);
  text += JsonTime("first_byte_at", record.first_byte_at, scale);
  text += JsonTime("last_byte_at", record.last_byte_at, scale);
  text += JsonTime("done_at", record.done_at, scale);
  return text;
}

}  // namespace ring_keras
