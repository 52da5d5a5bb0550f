/* What a library exports so that ranks of ring_keras on different hosts reach
 * each other through it: RING_KERAS_TRANSPORT=/path/of/the/library.so.
 *
 * docs/transports.md explains it; tests/toy_transport/ has one. A C header of
 * its own: a library needs no other file of ring_keras.
 *
 * ring_keras calls all of these from one thread at a time, not always the same
 * one. None may wait: what would have to returns, and is called again. None may
 * throw. `error` has room for `error_nbytes` bytes; the library writes a text
 * that ends with a 0 there, which people get to read.
 */
#ifndef RING_KERAS_TRANSPORT_H_
#define RING_KERAS_TRANSPORT_H_

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include <sys/uio.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Changes when what is below does. */
#define RING_KERAS_TRANSPORT_VERSION 1

/* The longest address, with the 0 at its end. */
#define RING_KERAS_TRANSPORT_ADDRESS_NBYTES 1024

/* What `send` and `receive` return once the connection has ended. */
#define RING_KERAS_TRANSPORT_CLOSED (-1)

/* One job, or one generation of it: from an init() to its shutdown(). */
struct ring_keras_transport_job {
  int rank;
  int size;
  uint64_t generation; /* The same on all ranks; another one for each init(). */
};

struct ring_keras_transport_calls {
  int version; /* RING_KERAS_TRANSPORT_VERSION, as it was compiled. */

  /* The library and the version of what it says to its like, such as "toy 1". A
   * job's ranks do not join if theirs differ. */
  const char* name;

  /* Begins a job on this rank. Writes the address by which other ranks can
   * reach it: a text without line breaks that ends with a 0. Returns what the
   * functions below get as `transport`, or NULL with `error`. */
  void* (*open)(const struct ring_keras_transport_job* job, char* address,
                size_t address_nbytes, char* error, size_t error_nbytes);

  /* Begins to connect this rank to `peer`, whose open() has written `address`,
   * and which does the same. Returns what the functions below get as
   * `connection`, or NULL with `error`. */
  void* (*connect)(void* transport, int peer, const char* address, char* error,
                   size_t error_nbytes);

  /* Goes on with it: 1 when both ends are there, 0 not yet, -1 with `error`. */
  int (*connected)(void* connection, char* error, size_t error_nbytes);

  /* Takes some of the bytes of `parts`, one after the other, and returns how
   * many; 0 if there is no room now. What it has taken it must send, in order;
   * the memory is the caller's again. RING_KERAS_TRANSPORT_CLOSED if the peer's
   * end is gone. */
  ssize_t (*send)(void* connection, const struct iovec* parts, int part_count);

  /* Writes bytes that have come to `parts`, and returns how many; 0 if there
   * are none now. RING_KERAS_TRANSPORT_CLOSED after the last ones of a peer
   * that has finished, or is gone. */
  ssize_t (*receive)(void* connection, const struct iovec* parts,
                     int part_count);

  /* Whether all that `send` has taken is out of this process's hands: 1 or 0.
   * While it is 0, `progress` is called. */
  int (*sent)(void* connection);

  /* This rank sends nothing more. */
  void (*finish)(void* connection);

  /* Why the connection has ended; NULL: its peer has finished, or is gone. */
  const char* (*failure)(void* connection);

  /* A file descriptor that can be read while `progress` has something to do,
   * including when something can be received or sent again. -1: there is none;
   * ring_keras looks again and again. */
  int (*wait)(void* transport);

  /* Takes note of what has come, and goes on with what is under way. */
  void (*progress)(void* transport);

  /* `peer` has died. Its connections may still be used, and must not wait. */
  void (*lose)(void* transport, int peer);

  /* The connection is not used any more. */
  void (*disconnect)(void* connection);

  /* The same of the job, which has no connection left. */
  void (*close)(void* transport);
};

/* The library's one symbol: what it has, which stays where it is. */
const struct ring_keras_transport_calls* ring_keras_transport(void);

#ifdef __cplusplus
}
#endif

#endif /* RING_KERAS_TRANSPORT_H_ */
