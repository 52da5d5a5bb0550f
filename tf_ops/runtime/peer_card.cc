#include "tf_ops/runtime/peer_card.h"

#include <limits.h>
#include <unistd.h>

#include <cctype>
#include <charconv>
#include <cstdlib>
#include <fstream>
#include <iomanip>
#include <optional>
#include <sstream>

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
  return setting.has_value() ? StrCat(*setting) : kUnset;
}

// What Word() has made of a setting; fails where it has not.
void ReadWord(std::istream& in, std::optional<size_t>* setting) {
  std::string word;
  in >> word;
  setting->reset();
  if (word == kUnset) return;
  const char* end = word.data() + word.size();
  const auto [read, error] =
      std::from_chars(word.data(), end, setting->emplace());
  if (error != std::errc() || read != end) in.setstate(std::ios::failbit);
}

Status CheckSame(std::string setting, const std::string& first,
                 const std::string& other, size_t rank) {
  if (first == other) return Status::Ok();
  for (char& letter : setting) letter = static_cast<char>(toupper(letter));
  const std::string variable = "RING_KERAS_" + setting;
  return Status(
      StatusCode::kRankMismatch,
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
    RING_KERAS_RETURN_IF_ERROR(CheckSame("autotune", StrCat(cards[0].autotune),
                                         StrCat(cards[rank].autotune), rank));
    for (const auto& [name, value] : kTuningSettings) {
      RING_KERAS_RETURN_IF_ERROR(CheckSame(name, Word(cards[0].tuning.*value),
                                           Word(cards[rank].tuning.*value),
                                           rank));
    }
  }
  return Status::Ok();
}

// What most cards have in common comes first: the store sends neighbours'
// common beginnings once. Names may hold spaces, so each has a line.
std::string Encode(const PeerCard& card) {
  std::ostringstream out;
  out << card.autotune;
  for (const auto& [name, value] : kTuningSettings) {
    out << ' ' << Word(card.tuning.*value);
  }
  out << '\n'
      << card.pid_namespace << '\n'
      << card.network_namespace << '\n'
      << card.host_id << '\n'
      << card.host_name << '\n'
      << card.boot_id << '\n'
      << card.segment_descriptor << ' ' << card.doorbell_descriptor << ' '
      << card.pid << ' ' << std::hex << std::setfill('0');
  for (uint8_t byte : card.nonce) out << std::setw(2) << int{byte};
  return out.str();
}

StatusOr<PeerCard> DecodePeerCard(const std::string& text) {
  PeerCard card;
  std::istringstream in(text);
  in >> card.autotune;
  for (const auto& [name, value] : kTuningSettings) {
    ReadWord(in, &(card.tuning.*value));
  }
  in.ignore();  // The line's end.
  std::getline(in, card.pid_namespace);
  std::getline(in, card.network_namespace);
  std::getline(in, card.host_id);
  std::getline(in, card.host_name);
  std::getline(in, card.boot_id);
  in >> card.segment_descriptor >> card.doorbell_descriptor >> card.pid;
  in.ignore();
  for (uint8_t& byte : card.nonce) {
    char digits[3] = "";
    in.read(digits, 2);
    byte = static_cast<uint8_t>(std::strtoul(digits, nullptr, 16));
  }
  // What was overlooked, such as a rest, would be missing.
  if (in.fail() || Encode(card) != text) {
    return Status(StatusCode::kInternal,
                  "another rank's card in the store cannot be read. Is the "
                  "same ring_keras installed on every host?");
  }
  return card;
}

}  // namespace ring_keras
