#include "tf_ops/runtime/wait_text.h"

#include <algorithm>
#include <cmath>
#include <mutex>
#include <utility>

namespace ring_keras {
namespace {

// Of thousands of ranks, each with what it waits for, a warning names a few.
constexpr size_t kMostNamed = 16;

// One sentence for each of the first; how many more there are.
class Sentences {
 public:
  // `here`: what this rank is called.
  explicit Sentences(std::string here) : here_(std::move(here)) {}

  void Add(int rank, const std::string& what) {
    if (++count_ > kMostNamed) return;
    text_ += StrCat(" Rank ", rank, " waits in ", what, ", which ", here_,
                    " has not entered.");
  }
  std::string Text() const {
    if (count_ <= kMostNamed) return text_;
    return StrCat(text_, " ", count_ - kMostNamed, " more are waited for so.");
  }

 private:
  const std::string here_;
  std::string text_;
  size_t count_ = 0;
};

// Where ranks that it waits for have announced what this one has not.
std::string DescribeAnnounced(const std::vector<int>& missing,
                              const Matcher& matcher, const std::string& here) {
  Sentences sentences(here);
  matcher.ForEachKept([&](int rank, const Announcement& peer) {
    if (!std::binary_search(missing.begin(), missing.end(), rank)) return;
    sentences.Add(rank, Describe(peer.kind, peer.use.name));
  });
  return sentences.Text();
}

// The same for what they have posted in channels.
std::string DescribePosted(const std::vector<int>& missing,
                           const SharedState& shared, const std::string& here) {
  Sentences sentences(here);
  std::lock_guard<std::mutex> lock(shared.mutex);
  for (const auto& [id, member] : shared.members) {
    if (member == nullptr) continue;
    const Communicator& communicator = *member->communicator;
    member->names.ForEach([&](const std::string& name, const NameUse& use) {
      if (use.channel == nullptr || use.channel->ended()) return;
      for (int rank : missing) {
        if (!communicator.Contains(rank)) continue;
        const int place = communicator.PlaceOf(rank);
        if (!use.channel->posts().IsAhead(place)) continue;
        sentences.Add(rank, StrCat("'", name, "'"));
      }
    });
  }
  return sentences.Text();
}

// What holds up the launch of a collective for which all ranks are there.
std::string DescribeEarlierLaunch(const Operation& operation,
                                  const ActiveOperations& all) {
  const auto next = operation.communicator().launch_order().next();
  for (const auto& other : all.adopted) {
    if (other->launch_id() != next || other->awaits_launch()) continue;
    return StrCat("its turn on the GPU: before it comes ", other->description(),
                  ", which waits for ", DescribeWait(*other, all));
  }
  return "its turn on the GPU, which is near";
}

// As people say it.
double Rounded(double seconds) {
  return seconds < 10 ? std::round(seconds * 10) / 10 : std::round(seconds);
}

}  // namespace

std::string JoinRanks(const std::vector<int>& ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (size_t i = 0; i < std::min(ranks.size(), kMostNamed); ++i) {
    const bool is_last = i > 0 && i + 1 == ranks.size();
    text += (is_last ? " and " : i > 0 ? ", " : "") + std::to_string(ranks[i]);
  }
  if (ranks.size() > kMostNamed) {
    text += StrCat(" and ", ranks.size() - kMostNamed, " more");
  }
  return text;
}

std::string DescribeWait(const Operation& operation,
                         const ActiveOperations& all) {
  if (operation.awaits_launch()) return DescribeEarlierLaunch(operation, all);
  if (operation.launched()) return "the GPU, which has been given all of it";
  const std::vector<int> missing = operation.MissingRanks();
  if (!missing.empty()) {
    return StrCat(JoinRanks(missing), " of ",
                  operation.communicator().mesh().size());
  }
  if (operation.on_device()) {
    return "NCCL to take it on this rank's GPU: it connects, or has earlier "
           "work; NCCL_DEBUG=INFO says more";
  }
  return "data of ranks that have entered it";
}

std::string DescribeStall(const Operation& operation, double age_s,
                          const ActiveOperations& all, const Matcher& matcher,
                          const SharedState& shared) {
  const std::string text =
      StrCat(operation.description(), ": waited ", Rounded(age_s), " s for ",
             DescribeWait(operation, all), ".");
  const std::vector<int> missing = operation.MissingRanks();
  const std::string here = "this rank";
  const std::string elsewhere = DescribeAnnounced(missing, matcher, here) +
                                DescribePosted(missing, shared, here);
  if (missing.empty() || !elsewhere.empty()) return text + elsewhere;
  return StrCat(text, missing.size() == 1 ? " It" : " They",
                " may be reading data, saving, or in a branch that other ranks "
                "do not take. If that is expected, raise "
                "RING_KERAS_STALL_TIMEOUT_S.");
}

std::string DescribeAwaited(const Operation& operation, double age_s) {
  return StrCat("rank ", operation.communicator().mesh().rank(), " has waited ",
                Rounded(age_s), " s for this rank in ", operation.description(),
                ".");
}

std::string DescribeWayToSee(const std::string& trace_dir) {
  if (trace_dir.empty()) {
    return " With RING_KERAS_TRACE_DIR=DIR, `ring analyze DIR` says in which "
           "line each rank stands.";
  }
  return StrCat(" `ring analyze ", trace_dir,
                "` says in which line each rank stands.");
}

std::string DescribeGivingUp(const Operation& operation, double age_s,
                             const ActiveOperations& all,
                             const Matcher& matcher,
                             const SharedState& shared) {
  const std::string here =
      StrCat("rank ", operation.communicator().mesh().rank());
  const std::vector<int> missing = operation.MissingRanks();
  const std::string elsewhere = DescribeAnnounced(missing, matcher, here) +
                                DescribePosted(missing, shared, here);
  const std::string advice =
      elsewhere.empty()
          ? " If slow input is expected, raise RING_KERAS_COLLECTIVE_TIMEOUT_S."
          : StrCat(elsewhere,
                   " They wait for each other: every rank must make the same "
                   "collective calls in the same order.");
  return StrCat(operation.description(), ": ", here, " gave up after ",
                Rounded(age_s), " s waiting for ", DescribeWait(operation, all),
                ".", advice);
}

}  // namespace ring_keras
