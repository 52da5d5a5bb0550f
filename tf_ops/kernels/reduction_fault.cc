#include "tf_ops/kernels/reduction_fault.h"

#include <algorithm>
#include <cmath>
#include <iomanip>
#include <sstream>
#include <utility>
#include <vector>

#include "tf_ops/common/status.h"

namespace ring_keras {

namespace {

// Ranks by what they have, in the order of the first of them.
using Holders = std::vector<std::pair<double, std::vector<int64_t>>>;

constexpr char kAdvice[] =
    " The memory, a processor or a network device of one of these hosts, or a "
    "link between them, is at fault. Look for errors in `dmesg`, in the "
    "counters of /sys/devices/system/edac and of `ethtool -S`, and test "
    "memory; start again from the last checkpoint, without the host that "
    "shows them. Set RING_KERAS_ENCRYPT=1 to find out whether it happens "
    "between hosts: a connection that changes data is then an error that "
    "names both.";

std::string Line(const std::string& text, int64_t number) {
  std::istringstream lines(text);
  std::string line;
  for (int64_t i = 0; i <= number && std::getline(lines, line); ++i) {
  }
  return line;
}

// With as many digits as show that two differ.
std::string Exactly(double value) {
  std::ostringstream text;
  text << std::setprecision(12) << value;
  return text.str();
}

std::string List(const std::vector<int64_t>& ranks) {
  std::string list;
  for (const int64_t rank : ranks) {
    list += StrCat(list.empty() ? "" : ", ", rank);
  }
  return StrCat("[", list, "]");
}

// Which ranks have which checksum of a tensor.
Holders HoldersOf(const ReductionChecksums& checksums, int64_t tensor) {
  Holders holders;
  const int64_t columns = 1 + checksums.tensors;
  for (int64_t i = 0; i < checksums.ranks; ++i) {
    const double* row = checksums.bits + i * columns;
    if (row[0] == 0) continue;
    const double checksum = row[1 + tensor];
    auto same = std::find_if(
        holders.begin(), holders.end(),
        [checksum](const auto& holder) { return holder.first == checksum; });
    if (same == holders.end()) same = holders.insert(same, {checksum, {}});
    same->second.push_back(static_cast<int64_t>(row[0]) - 1);
  }
  return holders;
}

std::string WhoDiffers(const Holders& holders, size_t rank_count) {
  std::string who;
  const std::vector<int64_t>* majority = nullptr;
  for (const auto& [checksum, ranks] : holders) {
    std::ostringstream hexadecimal;
    hexadecimal << std::hex << static_cast<uint64_t>(checksum);
    who += StrCat(who.empty() ? "" : ", ", "ranks ", List(ranks),
                  " have the checksum 0x", hexadecimal.str());
    if (2 * ranks.size() > rank_count) majority = &ranks;
  }
  if (majority == nullptr)
    return who + ". Which of them is wrong is not known.";
  std::vector<int64_t> others;
  for (const auto& [checksum, ranks] : holders) {
    if (&ranks != majority) {
      others.insert(others.end(), ranks.begin(), ranks.end());
    }
  }
  return StrCat(who, ". Most have one, so what ranks ", List(others),
                " got is wrong.");
}

std::string BitsFault(const ReductionChecksums& checksums,
                      const std::string& names) {
  int64_t first = -1;
  int64_t count = 0;
  for (int64_t tensor = 0; tensor < checksums.tensors; ++tensor) {
    if (HoldersOf(checksums, tensor).size() < 2) continue;
    if (count++ == 0) first = tensor;
  }
  if (count == 0) return "";
  const Holders holders = HoldersOf(checksums, first);
  size_t rank_count = 0;
  for (const auto& [checksum, ranks] : holders) rank_count += ranks.size();
  return StrCat(Line(names, first),
                ": its bits differ across ranks after the reduction, where all "
                "get the same: ",
                WhoDiffers(holders, rank_count), " ", count, " of ",
                checksums.tensors,
                " gradients differ. A bit changed on its way to them, or in "
                "their memory.",
                kAdvice);
}

std::string SumFault(const ReductionChecksums& checksums,
                     const std::string& names) {
  const double* tensor = checksums.sums;
  const double* expected = tensor + checksums.blocks;
  const double* came = expected + checksums.blocks;
  const double* tolerance = came + checksums.blocks;
  int64_t first = -1;
  int64_t count = 0;
  for (int64_t i = 0; i < checksums.blocks; ++i) {
    // A NaN is none that may be.
    if (std::abs(came[i] - expected[i]) <= tolerance[i]) continue;
    if (count++ == 0) first = i;
  }
  if (count == 0) return "";
  return StrCat(
      Line(names, static_cast<int64_t>(tensor[first])),
      ": what the ranks brought adds up to ", Exactly(expected[first]),
      ", what came of the reduction to ", Exactly(came[first]),
      ", and rounding explains a difference of ", tolerance[first],
      " at most. ", count, " of ", checksums.blocks,
      " blocks of elements are wrong, on all ranks alike. A bit changed before "
      "the sum was complete; sums do not tell on which rank.",
      kAdvice);
}

}  // namespace

std::string ReductionFault(const ReductionChecksums& checksums,
                           const std::string& names) {
  const std::string fault = BitsFault(checksums, names);
  return fault.empty() ? SumFault(checksums, names) : fault;
}

}  // namespace ring_keras
