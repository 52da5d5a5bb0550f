// What ring_keras/config/ reads from the environment.
#ifndef RING_KERAS_RUNTIME_INIT_OPTIONS_H_
#define RING_KERAS_RUNTIME_INIT_OPTIONS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "tf_ops/collectives/tuning.h"
#include "tf_ops/common/deadline.h"
#include "tf_ops/common/logging.h"
#include "tf_ops/common/store.h"

namespace ring_keras {

struct InitOptions {
  int rank = 0;
  int size = 1;
  // The store; unused when size is 1.
  std::string store_host;
  int store_port = 0;
  std::string token;  // The job's secret, 32 bytes.
  uint64_t generation = 0;

  // What ranks and the store say to each other over TCP; the same everywhere.
  bool encrypts = false;

  std::string host_name;     // Empty: the machine's own name.
  std::string bind_address;  // For other ranks; empty: one that all reach.
  // Whose addresses other hosts may take; empty: the fastest's that all reach.
  std::vector<std::string> interfaces;
  // What carries between ranks: "auto" is shared memory on a host and TCP
  // between hosts; "tcp" is TCP everywhere; "mpi", and the path of a library,
  // take the place of TCP between hosts.
  std::string transport = "auto";
  // Whether tensors may come from memory that the ranks of the host can read.
  bool shares_tensors = false;
  int tcp_streams = 2;  // Connections per pair of ranks.
  // A job connects all its ranks when it starts, if none has more than so many
  // on other hosts; else when they first need it. The same on every rank.
  int max_direct_peers = 24;
  Tuning tuning;          // The same on every rank.
  bool autotune = false;  // The same; the caller tunes, after Init.

  // Directories, separated by colons, in which NVIDIA's libraries are looked
  // for before anywhere else.
  std::string cuda_library_path;

  // Where a rank writes what it knows when the job stalls or breaks. Empty:
  // nowhere.
  std::string trace_dir;

  double init_timeout_s = 120;
  Interruption interruption;  // Ends init() early; may be empty.
  double collective_timeout_s = 600;
  double stall_warning_s = 60;
  // The store's, on every rank.
  double heartbeat_timeout_s = kHeartbeatTimeoutS;
  LogLevel log_level = LogLevel::kInfo;
};

}  // namespace ring_keras

#endif  // RING_KERAS_RUNTIME_INIT_OPTIONS_H_
