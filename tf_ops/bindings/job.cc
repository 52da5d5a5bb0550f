#include "tf_ops/bindings/job.h"

#include <pybind11/stl.h>

#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "tf_ops/bindings/calls.h"
#include "tf_ops/bindings/errors.h"
#include "tf_ops/bindings/gil.h"
#include "tf_ops/bindings/signals.h"
#include "tf_ops/common/interfaces.h"
#include "tf_ops/common/logging.h"
#include "tf_ops/runtime/communicator_id.h"
#include "tf_ops/runtime/current_membership.h"
#include "tf_ops/runtime/runtime.h"
#include "tf_ops/runtime/transport_choice.h"

namespace py = pybind11;

namespace ring_keras {
namespace {

LogLevel ParseLogLevel(const std::string& name) {
  const std::vector<std::string> names = {"debug", "info", "warning", "error",
                                          "off"};
  for (size_t i = 0; i < names.size(); ++i) {
    if (name == names[i]) return static_cast<LogLevel>(i);
  }
  throw py::value_error(
      "expected a log level of debug, info, warning, error, off, got '" + name +
      "'.");
}

using TuningValues = std::map<std::string, std::optional<size_t>>;

// What `values` leaves out is not set.
Tuning ParseTuning(const TuningValues& values) {
  Tuning tuning;
  size_t known = 0;
  for (const auto& [name, value] : kTuningSettings) {
    const auto found = values.find(name);
    if (found == values.end()) continue;
    tuning.*value = found->second;
    ++known;
  }
  if (known == values.size()) return tuning;
  std::string names;
  for (const auto& [name, value] : kTuningSettings) {
    names += StrCat(names.empty() ? "" : ", ", name);
  }
  throw py::value_error("expected in `tuning` only " + names + ".");
}

TuningValues GetTuning() {
  const Tuning tuning =
      ValueOrThrow(WithoutGil([] { return Runtime::Get().GetTuning(); }));
  TuningValues values;
  for (const auto& [name, value] : kTuningSettings) {
    values[name] = tuning.*value;
  }
  return values;
}

void Init(int rank, int size, const std::string& store_host, int store_port,
          const py::bytes& token, uint64_t generation, bool encrypts,
          const std::string& host_name, const std::string& bind_address,
          const std::vector<std::string>& interfaces,
          const std::string& transport, bool shares_tensors, int tcp_streams,
          const TuningValues& tuning, bool autotune,
          const std::string& cuda_library_path, const std::string& trace_dir,
          double init_timeout_s, double collective_timeout_s,
          double stall_warning_s, double heartbeat_timeout_s,
          const std::string& log_level) {
  InitOptions options;
  options.rank = rank;
  options.size = size;
  options.store_host = store_host;
  options.store_port = store_port;
  options.token = token;
  options.generation = generation;
  options.encrypts = encrypts;
  options.host_name = host_name;
  options.bind_address = bind_address;
  options.interfaces = interfaces;
  options.transport = transport;
  options.shares_tensors = shares_tensors;
  options.tcp_streams = tcp_streams;
  options.tuning = ParseTuning(tuning);
  options.autotune = autotune;
  options.cuda_library_path = cuda_library_path;
  options.trace_dir = trace_dir;
  options.init_timeout_s = init_timeout_s;
  options.collective_timeout_s = collective_timeout_s;
  options.stall_warning_s = stall_warning_s;
  options.heartbeat_timeout_s = heartbeat_timeout_s;
  options.log_level = ParseLogLevel(log_level);
  Await([&] { return Runtime::Get().Init(options); });
}

std::vector<std::string> OwnAddresses(
    const std::vector<std::string>& interfaces) {
  std::vector<std::string> addresses;
  for (const auto& entry : ValueOrThrow(InterfaceAddresses(interfaces))) {
    addresses.push_back(entry.address);
  }
  return addresses;
}

std::tuple<int, int, int, int, int, int> GetTopology() {
  const Topology topology =
      ValueOrThrow(WithoutGil([] { return Runtime::Get().GetTopology(); }));
  return {topology.rank,       topology.size,       topology.local_rank,
          topology.local_size, topology.cross_rank, topology.cross_size};
}

}  // namespace

void BindJob(py::module_& module) {
  const InitOptions defaults;
  module.def("init", &Init, py::kw_only(), py::arg("rank") = defaults.rank,
             py::arg("size") = defaults.size,
             py::arg("store_host") = defaults.store_host,
             py::arg("store_port") = defaults.store_port,
             py::arg("token") = py::bytes(),
             py::arg("generation") = defaults.generation,
             py::arg("encrypts") = defaults.encrypts,
             py::arg("host_name") = defaults.host_name,
             py::arg("bind_address") = defaults.bind_address,
             py::arg("interfaces") = defaults.interfaces,
             py::arg("transport") = defaults.transport,
             py::arg("shares_tensors") = defaults.shares_tensors,
             py::arg("tcp_streams") = defaults.tcp_streams,
             py::arg("tuning") = std::map<std::string, size_t>(),
             py::arg("autotune") = defaults.autotune,
             py::arg("cuda_library_path") = defaults.cuda_library_path,
             py::arg("trace_dir") = defaults.trace_dir,
             py::arg("init_timeout_s") = defaults.init_timeout_s,
             py::arg("collective_timeout_s") = defaults.collective_timeout_s,
             py::arg("stall_warning_s") = defaults.stall_warning_s,
             py::arg("heartbeat_timeout_s") = defaults.heartbeat_timeout_s,
             py::arg("log_level") = "info");
  module.def(
      "start_mpi",
      [](const std::string& library, const std::string& folder) {
        Await([&] { return StartMpi(library, folder); });
      },
      py::arg("library"), py::arg("folder"));
  module.def("mpi_is_running", &MpiIsRunning);
  module.def(
      "shutdown",
      [](const std::string& reason) {
        WithoutGil([&] { Runtime::Get().Shutdown(reason); });
      },
      py::arg("reason"));
  module.def("raise_from_handler", &ThrowIfHandlerRaised);
  module.def("interrupt",
             [] { WithoutGil([] { Runtime::Get().InterruptAll(); }); });
  module.def(
      "give_up_step",
      [](int communicator_id, const std::string& why, uint64_t steps_ahead,
         bool unless_heard) {
        const GiveUpOptions options{steps_ahead, unless_heard};
        ThrowIfError(WithoutGil([&] {
          return Runtime::Get().GiveUpStep(communicator_id, why, options);
        }));
      },
      py::arg("communicator_id"), py::arg("why"), py::kw_only(),
      py::arg("steps_ahead"), py::arg("unless_heard"));
  module.def(
      "forget_given_up",
      [](int communicator_id) {
        ThrowIfError(WithoutGil(
            [&] { return Runtime::Get().ForgetGivenUp(communicator_id); }));
      },
      py::arg("communicator_id"));
  module.def("is_initialized", [] {
    return WithoutGil([] { return Runtime::Get().initialized(); });
  });
  module.def("own_addresses", &OwnAddresses, py::arg("interfaces"));
  module.def("topology", &GetTopology);
  module.def("generation", [] {
    return ValueOrThrow(WithoutGil(CurrentMembership)).generation;
  });
  module.def("communicator_base", [] {
    return ValueOrThrow(WithoutGil(CurrentMembership)).communicator_base;
  });
  module.def(
      "use_cuda_device",
      [](int device) {
        ThrowIfError(WithoutGil([&] { return UseCudaDevice(device); }));
      },
      py::arg("device"));
  module.def("tuning", &GetTuning);
  module.def(
      "set_tuning",
      [](const TuningValues& values) {
        const Tuning tuning = ParseTuning(values);
        ThrowIfError(
            WithoutGil([&] { return Runtime::Get().SetTuning(tuning); }));
      },
      py::arg("tuning"));
  module.def(
      "log",
      [](const std::string& level, const std::string& text) {
        Log(ParseLogLevel(level), text);
      },
      py::arg("level"), py::arg("text"));
  module.def(
      "add_communicator",
      [](const std::vector<int>& ranks) {
        return ValueOrThrow(
            WithoutGil([&] { return Runtime::Get().AddCommunicator(ranks); }));
      },
      py::arg("ranks"));
  module.def(
      "remove_communicator",
      [](int id) {
        ThrowIfError(
            WithoutGil([&] { return Runtime::Get().RemoveCommunicator(id); }));
      },
      py::arg("communicator_id"));
  module.def("first_of_members", [] { return kFirstOfMembers; });
  module.def(
      "join_communicator",
      [](int id, const std::vector<int>& ranks) {
        ThrowIfError(WithoutGil(
            [&] { return Runtime::Get().JoinCommunicator(id, ranks); }));
      },
      py::arg("communicator_id"), py::arg("ranks"));
  module.def(
      "communicator_ranks",
      [](int id) {
        return ValueOrThrow(
            WithoutGil([&] { return Runtime::Get().CommunicatorRanks(id); }));
      },
      py::arg("communicator_id"));
  module.def(
      "transport_to",
      [](int rank) {
        return ValueOrThrow(
            WithoutGil([&] { return Runtime::Get().TransportTo(rank); }));
      },
      py::arg("rank"));
}

}  // namespace ring_keras
