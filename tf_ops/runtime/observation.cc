#include "tf_ops/runtime/observation.h"

#include <algorithm>

#include "tf_ops/runtime/membership_slot.h"
#include "tf_ops/runtime/runtime.h"

namespace ring_keras {
namespace {

// `look(engine)` with the driver, or NotInitialized.
template <typename Look>
Status WithEngine(Look look) {
  Runtime::Get();  // It makes the slot.
  return MembershipSlot::of_process->WithJob([&](Job& job) {
    Engine& engine = job.engine();
    engine.WithDriver([&] { look(engine); });
    return Status::Ok();
  });
}

}  // namespace

StatusOr<Observation> Observe(bool with_steps) {
  Observation seen;
  RING_KERAS_RETURN_IF_ERROR(WithEngine([&seen, with_steps](Engine& engine) {
    const StepBook& book = engine.recorder().steps();
    // What belongs to no step leaves the open one as it is.
    const auto under_way = engine.UnderWay(/*with_missing=*/false);
    const bool idle = std::none_of(
        under_way.begin(), under_way.end(),
        [](const PendingCollective& one) { return one.record.step != 0; });
    if (with_steps) seen.steps = book.Steps(idle);
    seen.totals = book.Totals(idle);
    seen.stood_still = book.StoodStill(Now());
    seen.tallies = engine.recorder().Tallies();
  }));
  return seen;
}

StatusOr<ObservedCollectives> ObserveCollectives(uint64_t after) {
  ObservedCollectives seen;
  RING_KERAS_RETURN_IF_ERROR(WithEngine([&seen, after](Engine& engine) {
    seen.records = engine.recorder().Recent(after);
    for (const PendingCollective& pending :
         engine.UnderWay(/*with_missing=*/false)) {
      seen.records.push_back(pending.record);
    }
  }));
  return seen;
}

StatusOr<std::vector<ObservedLink>> ObserveLinks() {
  std::vector<ObservedLink> seen;
  RING_KERAS_RETURN_IF_ERROR(WithEngine([&seen](Engine& engine) {
    Mesh& mesh = engine.mesh();
    for (int peer = 0; peer < mesh.size(); ++peer) {
      if (peer == mesh.rank() || mesh.SharesMemoryWith(peer)) continue;
      seen.push_back({peer, mesh.pair(peer).sent()});
    }
  }));
  return seen;
}

StatusOr<ObservedWaits> ObserveWaits() {
  ObservedWaits seen;
  RING_KERAS_RETURN_IF_ERROR(WithEngine([&seen](Engine& engine) {
    for (const PendingCollective& pending :
         engine.UnderWay(/*with_missing=*/true)) {
      const CollectiveRecord& record = pending.record;
      if (record.kind == CollectiveKind::kJoin || record.submitted_at == 0) {
        continue;
      }
      for (int rank : pending.missing) {
        Ticks& since =
            seen.since.emplace(rank, record.submitted_at).first->second;
        since = std::min(since, record.submitted_at);
      }
    }
  }));
  return seen;
}

Status BeginSteps() {
  return WithEngine(
      [](Engine& engine) { engine.recorder().steps().BeginSteps(Now()); });
}

Status SetRecording(bool on) {
  return WithEngine([on](Engine& engine) { engine.recorder().set_on(on); });
}

Status DumpAll(const std::string& why) {
  Runtime::Get();
  return MembershipSlot::of_process->WithJob([&](Job& job) {
    job.engine().Dump(why);
    return Status::Ok();
  });
}

Status SetDebugged(bool is_debugged) {
  Runtime::Get();
  return MembershipSlot::of_process->WithJob([&](Job& job) {
    job.engine().TellDebugged(is_debugged);
    return Status::Ok();
  });
}

void AddInput(Ticks from, Ticks to, double examples) {
  Runtime::Get();
  (void)MembershipSlot::of_process->WithJob([&](Job& job) {
    job.engine().recorder().steps().AddInput(from, to, examples);
    return Status::Ok();
  });
}

}  // namespace ring_keras
