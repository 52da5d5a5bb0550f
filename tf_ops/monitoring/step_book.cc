#include "tf_ops/monitoring/step_book.h"

#include <algorithm>
#include <utility>

namespace ring_keras {
namespace {

// Collectives, and looks for data, that are kept one by one.
constexpr size_t kMaxStandings = 4096;
constexpr size_t kMaxInputs = 4096;

void AddTo(std::vector<Ticks>& to, const std::vector<Ticks>& what) {
  for (size_t i = 0; i < to.size(); ++i) to[i] += what[i];
}

}  // namespace

StepBook::StepBook(int rank, int size) : rank_(rank), size_(size) {
  for (auto* waited_for :
       {&inside_.waited_for, &after_.waited_for, &totals_.waited_for}) {
    waited_for->resize(size);
  }
  standings_.reserve(kMaxStandings);
}

// Keeps its memory.
void StepBook::Clear(Sums& sums) {
  std::vector<Ticks> waited_for = std::move(sums.waited_for);
  std::fill(waited_for.begin(), waited_for.end(), 0);
  sums = {};
  sums.waited_for = std::move(waited_for);
}

void StepBook::Append(Sums& to, const Sums& what) {
  to.wait += what.wait;
  to.exposed += what.exposed;
  to.input += what.input;
  to.overlap += what.overlap;
  to.nbytes += what.nbytes;
  to.collectives += what.collectives;
  if (what.wait != 0) AddTo(to.waited_for, what.waited_for);
}

void StepBook::Append(Sums& to, const Standstill& what) {
  to.wait += what.wait;
  to.exposed += what.exposed;
  to.input += what.input;
  to.overlap += what.overlap;
  AddTo(to.waited_for, what.waited_for);
}

void StepBook::Append(StepTotals& to, const StepRecord& what) {
  if (to.step == 0) to.began_at = what.began_at;
  to.communicator_id = what.communicator_id;
  ++to.step;
  to.duration += what.duration;
  to.input += what.input;
  to.compute += what.compute;
  to.wait += what.wait;
  to.exposed += what.exposed;
  to.overlap += what.overlap;
  to.nbytes += what.nbytes;
  to.collectives += what.collectives;
  to.examples += what.examples;
  AddTo(to.waited_for, what.waited_for);
}

void StepBook::BeginStep(const CollectiveRecord& first) {
  Close();
  step_ = first.step;
  communicator_id_ = first.communicator_id;
  if (began_at_ != 0) return;
  // Of the very first nothing is known before.
  began_at_ = first.submitted_at;
  Clear(after_);
  standings_.clear();
}

void StepBook::BeginSteps(Ticks now) {
  Close();
  step_ = 0;
  began_at_ = ended_at_ = folded_to_ = now;
  Clear(inside_);
  Clear(after_);
  standings_.clear();
  std::lock_guard<std::mutex> lock(input_mutex_);
  inputs_.clear();
  batches_.clear();
}

Standing StepBook::StandingOf(const CollectiveRecord& ended) const {
  Standing standing;
  standing.awaited_at = ended.awaited_at;
  standing.arrived_at = ended.arrived_at;
  // One that failed waited to its end.
  standing.matched_at =
      ended.matched_at != 0 ? ended.matched_at : ended.released_at;
  standing.first_byte_at = ended.first_byte_at;
  standing.last_byte_at = ended.last_byte_at;
  standing.released_at = ended.released_at;
  standing.last_rank = ended.last_rank;
  standing.waits_for_peer = ended.arrived_at != 0 && ended.last_rank != rank_;
  return standing;
}

void StepBook::Add(const CollectiveRecord& ended, bool alone) {
  after_.nbytes += ended.nbytes;
  ++after_.collectives;
  if (alone) {
    const bool waited = ended.last_rank != rank_ && ended.last_rank >= 0;
    const Ticks wait = waited ? ended.matched_at - ended.arrived_at : 0;
    after_.wait += wait;
    after_.exposed += ended.released_at - ended.arrived_at - wait;
    if (waited) after_.waited_for[ended.last_rank] += wait;
  } else {
    standings_.push_back(StandingOf(ended));
    if (standings_.size() == kMaxStandings) Fold(ended.done_at);
  }
  if (ended.step == 0 || ended.communicator_id != communicator_id_) return;
  Append(inside_, after_);
  Clear(after_);
  ended_at_ = std::max(ended_at_, ended.done_at);
}

void StepBook::AddInput(Ticks from, Ticks to, double examples) {
  std::lock_guard<std::mutex> lock(input_mutex_);
  if (inputs_.size() < kMaxInputs) inputs_.emplace_back(from, to);
  if (batches_.size() < kMaxInputs) return batches_.push_back({to, examples});
  batches_.back().came_at = to;
  batches_.back().examples += examples;
}

void StepBook::Fold(Ticks now) {
  std::lock_guard<std::mutex> lock(input_mutex_);
  Append(after_, FindStandstill(standings_, inputs_,
                                std::max(began_at_, folded_to_), now, size_));
  folded_to_ = now;
  standings_.clear();
  ForgetInputs(now);
}

void StepBook::ForgetInputs(Ticks until) {
  std::erase_if(inputs_,
                [until](const auto& span) { return span.second <= until; });
}

double StepBook::ExamplesSoFar() const {
  double examples = 0;
  for (const Batch& batch : batches_) {
    if (batch.came_at <= ended_at_) examples += batch.examples;
  }
  return examples;
}

StepRecord StepBook::Finished() const {
  const Ticks from = std::max(began_at_, folded_to_);
  StepRecord step;
  Standstill last;
  {
    std::lock_guard<std::mutex> lock(input_mutex_);
    last = FindStandstill(standings_, inputs_, from, ended_at_, size_);
    step.examples = ExamplesSoFar();
  }
  Sums sums = inside_;
  Append(sums, last);
  step.step = step_;
  step.communicator_id = communicator_id_;
  step.began_at = began_at_;
  step.duration = ended_at_ - began_at_;
  // Calls of several threads may have stood still at the same time.
  Ticks left = step.duration;
  for (const auto& [part, sum] : {std::pair(&step.wait, sums.wait),
                                  std::pair(&step.exposed, sums.exposed),
                                  std::pair(&step.input, sums.input)}) {
    *part = std::min(left, sum);
    left -= *part;
  }
  step.compute = left;
  step.overlap = sums.overlap;
  step.nbytes = sums.nbytes;
  step.collectives = sums.collectives;
  step.waited_for = std::move(sums.waited_for);
  return step;
}

void StepBook::Close() {
  if (step_ == 0 || !is_open()) return;
  StepRecord step = Finished();
  Append(totals_, step);
  if (steps_.size() == kSteps) steps_.pop_front();
  steps_.push_back(std::move(step));
  // What goes on belongs to the next as well.
  std::erase_if(standings_, [this](const Standing& one) {
    return std::max(one.released_at, one.last_byte_at) <= ended_at_;
  });
  {
    std::lock_guard<std::mutex> lock(input_mutex_);
    ForgetInputs(ended_at_);
    std::erase_if(batches_, [this](const Batch& batch) {
      return batch.came_at <= ended_at_;
    });
  }
  Clear(inside_);
  began_at_ = ended_at_;
}

std::vector<StepRecord> StepBook::Steps(bool idle) const {
  std::vector<StepRecord> steps(steps_.begin(), steps_.end());
  if (idle && step_ != 0 && is_open()) {
    if (steps.size() == kSteps) steps.erase(steps.begin());
    steps.push_back(Finished());
  }
  return steps;
}

StepTotals StepBook::Totals(bool idle) const {
  StepTotals totals = totals_;
  if (idle && step_ != 0 && is_open()) Append(totals, Finished());
  return totals;
}

Ticks StepBook::StoodStill(Ticks now) const {
  const Standstill last = FindStandstill(
      standings_, /*inputs=*/{}, std::max(began_at_, folded_to_), now, size_);
  return totals_.wait + totals_.exposed + inside_.wait + inside_.exposed +
         after_.wait + after_.exposed + last.wait + last.exposed;
}

}  // namespace ring_keras
