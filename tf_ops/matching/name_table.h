// The names that this rank remembers of a communicator.
//
// Programs may make names up without end. Of one that is not used again nothing
// needs to be remembered: uses meet in the order in which they are announced
// (runtime/matcher.h), whatever the ranks have counted, and whether a use may
// leave a channel follows from the counts of all, which are announced. So each
// rank forgets when it likes.
#ifndef RING_KERAS_MATCHING_NAME_TABLE_H_
#define RING_KERAS_MATCHING_NAME_TABLE_H_

#include <cstddef>
#include <iterator>
#include <string>
#include <unordered_map>
#include <utility>

#include "tf_ops/matching/name_use.h"

namespace ring_keras {

// The caller of each holds the engine's mutex.
class NameTable {
 public:
  // Once so many names are new, those are forgotten that were not used since
  // the last time: of names that are made up, about twice as many are there.
  static constexpr size_t kNewNames = 4096;

  // Stays where it is until it is forgotten. In steps and out of them names are
  // apart: a channel serves one or the other.
  NameUse& Of(const std::string& name, bool in_step) {
    const auto [found, is_new] =
        (in_step ? in_steps_ : others_).try_emplace(name);
    new_names_ += is_new;
    found->second.used_lately = true;
    return found->second;
  }

  // The same of a name out of steps; null if it is not remembered.
  NameUse* Find(const std::string& name) {
    const auto found = others_.find(name);
    return found == others_.end() ? nullptr : &found->second;
  }

  // Only by the driver, or while nobody drives. Names whose channel has a
  // window stay: how many may have one is bounded already
  // (transport/shm/kept_windows.h).
  void ForgetUnused() {
    if (new_names_ < kNewNames) return;
    new_names_ = 0;
    for (Names* names : {&others_, &in_steps_}) {
      for (auto named = names->begin(); named != names->end();) {
        NameUse& use = named->second;
        const bool lately = std::exchange(use.used_lately, false);
        const bool has_channel =
            use.channel != nullptr && !use.channel->ended();
        const bool keeps_windows = has_channel && use.channel->has_windows();
        const bool forget =
            !lately && !keeps_windows && use.gone == use.next_sequence;
        if (forget && has_channel) use.EndChannel();
        named = forget ? names->erase(named) : std::next(named);
        forgotten_ += forget;
      }
    }
  }
  // How many it has forgotten: since then a name may be another.
  uint64_t forgotten() const { return forgotten_; }

  template <typename Visit>
  void ForEachInSteps(Visit visit) {
    for (auto& [name, use] : in_steps_) visit(name, use);
  }
  template <typename Visit>
  void ForEach(Visit visit) {
    for (auto& [name, use] : others_) visit(name, use);
    ForEachInSteps(visit);
  }
  size_t size() const { return others_.size() + in_steps_.size(); }

 private:
  using Names = std::unordered_map<std::string, NameUse>;

  Names others_;
  Names in_steps_;
  size_t new_names_ = 0;  // Since it last forgot any.
  uint64_t forgotten_ = 0;
};

}  // namespace ring_keras

#endif  // RING_KERAS_MATCHING_NAME_TABLE_H_
