// Which transport a job has between ranks that share no memory, by name.
#ifndef RING_KERAS_RUNTIME_TRANSPORT_CHOICE_H_
#define RING_KERAS_RUNTIME_TRANSPORT_CHOICE_H_

#include <memory>
#include <string>

#include "tf_ops/common/export.h"
#include "tf_ops/common/status.h"
#include "tf_ops/runtime/init_options.h"
#include "tf_ops/runtime/tcp_transport.h"
#include "tf_ops/transport/transport.h"

namespace ring_keras {

// Begins MPI in this process, if nobody has; any later call does nothing.
// `library`: its path, or empty; then the one that is loaded, one in `folder`,
// or the loader's. Returns when all of MPI's processes have done the same.
//
// Errors: Internal (there is none, or it cannot be used).
RING_KERAS_EXPORT Status StartMpi(const std::string& library,
                                  const std::string& folder);

// Whether StartMpi() has.
RING_KERAS_EXPORT bool MpiIsRunning();

// What `options.transport` names, not connected yet. `find_addresses`: TCP's.
// Errors: InvalidArgument (there is none of that name), Internal.
StatusOr<std::unique_ptr<Transport>> MakeTransport(
    const InitOptions& options, uint64_t generation,
    TcpTransport::FindAddresses find_addresses);

}  // namespace ring_keras

#endif  // RING_KERAS_RUNTIME_TRANSPORT_CHOICE_H_
