#include "tf_ops/bindings/store_server.h"

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "tf_ops/bindings/errors.h"
#include "tf_ops/bindings/gil.h"
#include "tf_ops/common/status.h"
#include "tf_ops/common/store.h"
#include "tf_ops/rendezvous/tcp_store_server.h"

namespace ring_keras {
namespace {

namespace py = pybind11;

std::unique_ptr<TcpStoreServer> Start(const std::string& bind_address, int port,
                                      int size, uint64_t generation,
                                      const py::bytes& token, bool encrypts,
                                      double heartbeat_timeout_s,
                                      double all_silent_timeout_s) {
  TcpStoreServerOptions options;
  options.bind_address = bind_address;
  options.port = port;
  options.size = size;
  options.generation = generation;
  options.token = token;
  options.encrypts = encrypts;
  options.heartbeat_timeout_s = heartbeat_timeout_s;
  options.all_silent_timeout_s = all_silent_timeout_s;
  auto server = [&] {
    GilRelease release;  // A host name may take long to resolve.
    return TcpStoreServer::Start(options);
  }();
  return ValueOrThrow(std::move(server));
}

// (rank, description, lost); lost is false for a rank that left.
py::list EndedRanks(const TcpStoreServer& server) {
  py::list ended;
  for (const RankEvent& event : server.ended_ranks()) {
    ended.append(py::make_tuple(event.rank, event.description,
                                event.kind == RankEvent::Kind::kLost));
  }
  return ended;
}

void ReportExit(TcpStoreServer& server, int rank,
                const std::string& description) {
  ThrowIfError(server.ReportExit(rank, description));
}

}  // namespace

void BindStoreServer(py::module_& module) {
  py::class_<TcpStoreServer>(module, "StoreServer")
      .def(py::init(&Start), py::arg("bind_address"), py::arg("port"),
           py::arg("size"), py::arg("generation"), py::arg("token"),
           py::arg("encrypts") = false,
           py::arg("heartbeat_timeout_s") = kHeartbeatTimeoutS,
           py::arg("all_silent_timeout_s") = 0.0)
      .def_property_readonly("port", &TcpStoreServer::port)
      .def("close", &TcpStoreServer::Close, py::call_guard<GilRelease>())
      .def("ended_ranks", &EndedRanks)
      .def("connected_ranks", &TcpStoreServer::connected_ranks)
      .def("report_exit", &ReportExit, py::arg("rank"), py::arg("description"));
}

}  // namespace ring_keras
