#include "tf_ops/runtime/peer_card.h"

#include <limits.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <fstream>
#include <optional>
#include <string_view>

namespace ring_keras {
namespace {

std::string MachineName() {
  char name[HOST_NAME_MAX + 1] = "";
  gethostname(name, sizeof(name) - 1);
  return name;
}

std::string BootId() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string boot_id;
  file >> boot_id;
  return boot_id;
}

// Such as "uts:[4026531838]"; empty: unknown. The numbers repeat on every
// machine.
std::string Namespace(const char* kind) {
  char target[64] = "";
  const ssize_t length = readlink(StrCat("/proc/self/ns/", kind).c_str(),
                                  target, sizeof(target) - 1);
  return length > 0 ? std::string(target, length) : "";
}

// A UTS namespace is what has a host name: containers have their own, unless
// they are meant to be part of their machine. Which GPUs ranks share is found
// by the same rule (ring_keras/network/host_id.py).
std::string HostId(const PeerCard& card, bool named) {
  const std::string uts = Namespace("uts");
  if (named || card.boot_id.empty() || uts.empty()) {
    return "name:" + card.host_name;
  }
  return uts;
}

constexpr char kUnset[] = "unset";

std::string Word(const std::optional<size_t>& setting) {
  return setting.has_value() ? std::to_string(*setting) : kUnset;
}

// Takes what comes before the next `end`, or all, off `text`.
std::string_view TakeUntil(char end, std::string_view* text) {
  const std::string_view taken = text->substr(0, text->find(end));
  text->remove_prefix(std::min(taken.size() + 1, text->size()));
  return taken;
}

// 0 if `word` does not begin with a number.
template <typename Number>
Number NumberOf(std::string_view word, int base = 10) {
  Number number = 0;
  std::from_chars(word.data(), word.data() + word.size(), number, base);
  return number;
}

Status Differs(std::string setting, const std::string& first,
               const std::string& other, size_t rank) {
  for (char& letter : setting) letter = static_cast<char>(toupper(letter));
  const std::string variable = "RING_KERAS_" + setting;
  return Status(
      StatusCode::kRankMismatch, ErrorCode::kSettingDiffers,
      StrCat(variable, " must be the same on every rank: it is ", first,
             " on rank 0 and ", other, " on rank ", rank, ". Set ", variable,
             " to one value for all ranks, or nowhere."));
}

}  // namespace

PeerCard MakePeerCard(const std::string& host_name) {
  PeerCard card;
  card.host_name = host_name.empty() ? MachineName() : host_name;
  card.boot_id = BootId();
  card.host_id = HostId(card, !host_name.empty());
  card.pid_namespace = Namespace("pid");
  card.network_namespace = Namespace("net");
  card.pid = getpid();
  return card;
}

Status CheckSameSettings(const std::vector<PeerCard>& cards) {
  for (size_t rank = 1; rank < cards.size(); ++rank) {
    const PeerCard& first = cards[0];
    const PeerCard& other = cards[rank];
    if (first.transport != other.transport) {
      return Differs("transport", first.transport, other.transport, rank);
    }
    if (first.autotune != other.autotune) {
      return Differs("autotune", StrCat(first.autotune), StrCat(other.autotune),
                     rank);
    }
    for (const auto& [name, value] : kTuningSettings) {
      if (first.tuning.*value != other.tuning.*value) {
        return Differs(name, Word(first.tuning.*value),
                       Word(other.tuning.*value), rank);
      }
    }
  }
  return Status::Ok();
}

// What most cards have in common comes first: the store sends neighbours'
// common beginnings once. Names may hold spaces, so each has a line.
//
// A rank reads the cards of thousands, so none of this takes a stream.
std::string Encode(const PeerCard& card) {
  std::string text = card.autotune ? "1" : "0";
  for (const auto& [name, value] : kTuningSettings) {
    text += ' ' + Word(card.tuning.*value);
  }
  for (const std::string* line :
       {&card.transport, &card.pid_namespace, &card.network_namespace,
        &card.host_id, &card.host_name, &card.boot_id}) {
    text += '\n' + *line;
  }
  text += '\n';
  for (int number : {card.segment_descriptor, card.doorbell_descriptor,
                     card.tensors_descriptor, card.pid}) {
    text += std::to_string(number) + ' ';
  }
  constexpr char kDigits[] = "0123456789abcdef";
  for (const SegmentNonce* nonce : {&card.nonce, &card.tensors_nonce}) {
    for (uint8_t byte : *nonce) {
      text += kDigits[byte / 16];
      text += kDigits[byte % 16];
    }
  }
  return text;
}

StatusOr<PeerCard> DecodePeerCard(const std::string& text) {
  PeerCard card;
  std::string_view rest = text;
  std::string_view settings = TakeUntil('\n', &rest);
  card.autotune = TakeUntil(' ', &settings) == "1";
  for (const auto& [name, value] : kTuningSettings) {
    const std::string_view word = TakeUntil(' ', &settings);
    if (word != kUnset) card.tuning.*value = NumberOf<size_t>(word);
  }
  for (std::string* line :
       {&card.transport, &card.pid_namespace, &card.network_namespace,
        &card.host_id, &card.host_name, &card.boot_id}) {
    *line = TakeUntil('\n', &rest);
  }
  for (int* number : {&card.segment_descriptor, &card.doorbell_descriptor,
                      &card.tensors_descriptor, &card.pid}) {
    *number = NumberOf<int>(TakeUntil(' ', &rest));
  }
  for (SegmentNonce* nonce : {&card.nonce, &card.tensors_nonce}) {
    for (uint8_t& byte : *nonce) {
      byte = NumberOf<uint8_t>(rest.substr(0, 2), 16);
      rest.remove_prefix(std::min<size_t>(2, rest.size()));
    }
  }
  // What was overlooked, such as a rest, would be missing.
  if (Encode(card) != text) {
    return Status(StatusCode::kInternal, ErrorCode::kOtherVersion,
                  "another rank's card in the store cannot be read. Is the "
                  "same ring_keras installed on every host?");
  }
  return card;
}

}  // namespace ring_keras
