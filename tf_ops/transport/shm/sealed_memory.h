// Memory that processes of a host share: a file without a name (memfd), whose
// size is sealed. No process can shrink it, which would end all that touch the
// rest with SIGBUS.
#ifndef RING_KERAS_TRANSPORT_SHM_SEALED_MEMORY_H_
#define RING_KERAS_TRANSPORT_SHM_SEALED_MEMORY_H_

#include <array>
#include <cstddef>
#include <cstdint>

#include "tf_ops/common/socket.h"
#include "tf_ops/common/status.h"

namespace ring_keras {

// Tells whether memory that was opened is the one that was meant.
using SegmentNonce = std::array<uint8_t, 16>;

// Of this machine: 4 KiB on x86-64, up to 64 KiB on arm64.
size_t PageBytes();
// The least of whole pages that hold `nbytes`.
size_t WholePages(size_t nbytes);

// Zeroed; costs what is touched of it. `name` is what /proc shows. Errors:
// Internal.
StatusOr<FileDescriptor> CreateSealedMemory(const char* name, size_t nbytes);

// What process `pid` of this host has as `descriptor`. Errors: Internal when it
// cannot be opened, or is no such memory of `nbytes`.
StatusOr<FileDescriptor> OpenSealedMemory(int pid, int descriptor,
                                          size_t nbytes);

// What is said of memory that turns out to be another. Internal.
Status NotTheMemory(int pid, int descriptor);

// All of it. Errors: ResourceExhausted.
StatusOr<char*> MapSealedMemory(const FileDescriptor& memory, size_t nbytes);

// Memory of this process alone, zeroed, in place of the pages at `data`.
// Whether it worked.
bool ReplaceByPrivate(char* data, size_t nbytes);

// Errors: Internal.
StatusOr<SegmentNonce> NewNonce();

}  // namespace ring_keras

#endif  // RING_KERAS_TRANSPORT_SHM_SEALED_MEMORY_H_
