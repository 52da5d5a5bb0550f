#include "tf_ops/bindings/monitoring.h"

#include <pybind11/stl.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "tf_ops/bindings/errors.h"
#include "tf_ops/bindings/gil.h"
#include "tf_ops/common/ticks.h"
#include "tf_ops/monitoring/dump_format.h"
#include "tf_ops/monitoring/stacks.h"
#include "tf_ops/runtime/dump_signal.h"
#include "tf_ops/runtime/first_batch.h"
#include "tf_ops/runtime/observation.h"

namespace py = pybind11;

namespace ring_keras {
namespace {

py::dict StepDict(const StepRecord& step, const TickScale& scale) {
  py::dict values;
  values["step"] = step.step;
  values["process_set"] = step.communicator_id;
  values["began_at"] = scale.UnixTime(step.began_at);
  values["duration_s"] = scale.Seconds(step.duration);
  values["input_s"] = scale.Seconds(step.input);
  values["compute_s"] = scale.Seconds(step.compute);
  values["wait_s"] = scale.Seconds(step.wait);
  values["exposed_s"] = scale.Seconds(step.exposed);
  values["overlap_s"] = scale.Seconds(step.overlap);
  values["bytes"] = step.nbytes;
  values["collectives"] = step.collectives;
  values["examples"] = step.examples;
  std::vector<double> waited_for;
  for (const Ticks ticks : step.waited_for) {
    waited_for.push_back(scale.Seconds(ticks));
  }
  values["waited_for_s"] = py::tuple(py::cast(waited_for));
  return values;
}

py::dict TallyDict(const Tally& tally, const TickScale& scale) {
  const double s_per_tick = scale.seconds_per_tick();
  py::dict values;
  values["kind"] = NameOf(tally.kind);
  values["algorithm"] = tally.algorithm;
  values["size_class_bytes"] =
      tally.size_class == 0 ? 0 : uint64_t{1} << (tally.size_class - 1);
  values["count"] = tally.count;
  values["bytes"] = tally.nbytes;
  values["wait_s"] = scale.Seconds(tally.wait);
  values["transfer_s"] = scale.Seconds(tally.transfer);
  values["best_bus_bandwidth"] = tally.best_bus_bytes_per_tick / s_per_tick;
  values["mean_bus_bandwidth"] =
      tally.transfer == 0 ? 0 : tally.bus_bytes / scale.Seconds(tally.transfer);
  return values;
}

py::dict RecordDict(const CollectiveRecord& record, const TickScale& scale) {
  const auto time = [&scale](Ticks moment) -> py::object {
    if (moment == 0) return py::none();
    return py::float_(scale.UnixTime(moment));
  };
  py::dict values;
  values["number"] = record.number;
  // A long one may have been cut within a character.
  values["name"] = py::reinterpret_steal<py::str>(
      PyUnicode_DecodeUTF8(record.name, std::strlen(record.name), "replace"));
  values["kind"] = NameOf(record.kind);
  values["algorithm"] = record.algorithm.name;
  values["step"] = record.step;
  values["process_set"] = record.communicator_id;
  values["bytes"] = record.nbytes;
  values["ranks"] = record.size;
  values["submitted_at"] = time(record.submitted_at);
  values["arrived_at"] = time(record.arrived_at);
  values["matched_at"] = time(record.matched_at);
  if (record.last_rank < 0) {
    values["last_rank"] = py::none();
  } else {
    values["last_rank"] = record.last_rank;
  }
  values["first_byte_at"] = time(record.first_byte_at);
  values["last_byte_at"] = time(record.last_byte_at);
  values["done_at"] = time(record.done_at);
  values["outcome"] = OutcomeName(record);
  return values;
}

py::dict Stats(size_t most_steps) {
  const Observation seen =
      ValueOrThrow(WithoutGil([&] { return Observe(most_steps > 0); }));
  py::list steps;
  const size_t count = seen.steps.size();
  for (size_t i = count - std::min(most_steps, count); i < count; ++i) {
    steps.append(StepDict(seen.steps[i], seen.scale));
  }
  py::list tallies;
  for (const Tally& tally : seen.tallies) {
    tallies.append(TallyDict(tally, seen.scale));
  }
  py::dict values;
  values["steps"] = steps;
  values["totals"] = StepDict(seen.totals, seen.scale);
  values["stood_still_s"] = seen.scale.Seconds(seen.stood_still);
  values["collectives"] = tallies;
  return values;
}

py::list RecentCollectives(uint64_t after) {
  const ObservedCollectives seen =
      ValueOrThrow(WithoutGil([after] { return ObserveCollectives(after); }));
  py::list records;
  for (const CollectiveRecord& record : seen.records) {
    records.append(RecordDict(record, seen.scale));
  }
  return records;
}

// Those that ended after number `after`, the program having waited that long
// for them until all ranks were there; and the number of the last of all.
py::tuple LongWaits(uint64_t after, double at_least_s) {
  const ObservedCollectives seen =
      ValueOrThrow(WithoutGil([after] { return ObserveCollectives(after); }));
  py::list records;
  for (const CollectiveRecord& record : seen.records) {
    if (!record.ended()) continue;
    after = record.number;
    if (record.matched_at == 0 ||
        seen.scale.Seconds(record.matched_at - record.submitted_at) <
            at_least_s) {
      continue;
    }
    records.append(RecordDict(record, seen.scale));
  }
  return py::make_tuple(records, after);
}

// By rank, for how many seconds this one has waited for it.
py::dict Waits() {
  const ObservedWaits seen = ValueOrThrow(WithoutGil(ObserveWaits));
  const Ticks now = Now();
  py::dict waits;
  for (const auto& [rank, since] : seen.since) {
    waits[py::int_(rank)] = seen.scale.Seconds(std::max(now, since) - since);
  }
  return waits;
}

py::list Links() {
  const auto seen = ValueOrThrow(WithoutGil(ObserveLinks));
  py::list links;
  for (const ObservedLink& link : seen) {
    links.append(py::make_tuple(link.receiver, link.sent.acknowledged_nbytes,
                                link.sent.busy_s));
  }
  return links;
}

}  // namespace

void BindMonitoring(py::module_& module) {
  module.def("links", &Links);
  module.def("stats", &Stats, py::arg("most_steps") = StepBook::kSteps);
  module.def("recent_collectives", &RecentCollectives, py::arg("after") = 0);
  module.def("long_waits", &LongWaits, py::arg("after"), py::arg("at_least_s"));
  module.def("waits", &Waits);
  module.def("begin_steps",
             [] { ThrowIfError(WithoutGil([] { return BeginSteps(); })); });
  module.def("await_first_batch", &AwaitFirstBatch);
  module.def("first_batch", &FirstBatch);
  module.def("ticks", &Now);
  module.def(
      "dump",
      [](const std::string& why) {
        ThrowIfError(WithoutGil([&] { return DumpAll(why); }));
      },
      py::arg("why"));
  module.def(
      "set_debugged",
      [](bool on) {
        ThrowIfError(WithoutGil([on] { return SetDebugged(on); }));
      },
      py::arg("on"));
  module.def(
      "set_recording",
      [](bool on) {
        ThrowIfError(WithoutGil([on] { return SetRecording(on); }));
      },
      py::arg("on"));
  module.def("listen_for_dump_signal", &ListenForDumpSignal);
  module.def("begin_stacks_by_handler", &BeginStacksByHandler);
  module.def("begin_places", [] { BeginStacks(nullptr, 0); });
  module.def("take_place_wanted", &TakePlaceWanted);
  module.def("end_stacks", [] { return WithoutGil(EndStacks); });
  module.def("await_stacks_wanted",
             [] { return WithoutGil(AwaitStacksWanted); });
  module.def("claim_stacks", &ClaimStacks);
  module.def("stacks_written", &StacksWritten);
  module.def(
      "add_input",
      [](Ticks from, Ticks to, double examples) {
        WithoutGil([&] { AddInput(from, to, examples); });
      },
      py::arg("since"), py::arg("until"), py::arg("examples"));
}

}  // namespace ring_keras
