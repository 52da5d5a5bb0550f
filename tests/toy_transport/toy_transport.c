/* A transport for ring_keras, for ranks of one machine: Unix sockets.
 *
 * It shows how little a library needs: the lower of two ranks listens, the
 * higher one connects and says who it is. docs/transports.md speaks of it.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "ring_keras_transport.h"

/* A test has another. */
#ifndef TOY_VERSION
#define TOY_VERSION RING_KERAS_TRANSPORT_VERSION
#endif

struct connection {
  struct toy* toy;
  int peer;
};

struct toy {
  int rank;
  int size;
  int listener;
  int epoll;
  int* sockets;   /* By peer; -1: not there. */
  int* strangers; /* Accepted, and not known yet; -1: none. */
};

static void* fail(const char* what, char* error, size_t error_nbytes) {
  snprintf(error, error_nbytes, "%s: %s", what, strerror(errno));
  return NULL;
}

/* A name that no file has. */
static struct sockaddr_un address_of(const char* name) {
  struct sockaddr_un address;
  memset(&address, 0, sizeof(address));
  address.sun_family = AF_UNIX;
  strncpy(address.sun_path + 1, name, sizeof(address.sun_path) - 2);
  return address;
}

static void watch(struct toy* toy, int socket) {
  struct epoll_event event;
  memset(&event, 0, sizeof(event));
  event.events = EPOLLIN | EPOLLOUT | EPOLLET;
  epoll_ctl(toy->epoll, EPOLL_CTL_ADD, socket, &event);
}

static void toy_close(void* transport) {
  struct toy* toy = transport;
  for (int i = 0; i < toy->size; ++i) {
    if (toy->sockets[i] >= 0) close(toy->sockets[i]);
    if (toy->strangers[i] >= 0) close(toy->strangers[i]);
  }
  close(toy->listener);
  close(toy->epoll);
  free(toy->sockets);
  free(toy->strangers);
  free(toy);
}

static void* toy_open(const struct ring_keras_transport_job* job, char* address,
                      size_t address_nbytes, char* error, size_t error_nbytes) {
  struct toy* toy = calloc(1, sizeof(*toy));
  uint64_t secret = 0;
  if (getrandom(&secret, sizeof(secret), 0) != sizeof(secret))
    secret = getpid();
  snprintf(address, address_nbytes, "ring_keras toy %016llx",
           (unsigned long long)secret);
  toy->rank = job->rank;
  toy->size = job->size;
  toy->sockets = malloc(job->size * sizeof(int));
  toy->strangers = malloc(job->size * sizeof(int));
  for (int i = 0; i < job->size; ++i) toy->sockets[i] = toy->strangers[i] = -1;
  toy->epoll = epoll_create1(EPOLL_CLOEXEC);
  toy->listener =
      socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  const struct sockaddr_un own = address_of(address);
  if (bind(toy->listener, (const struct sockaddr*)&own, sizeof(own)) != 0 ||
      listen(toy->listener, job->size) != 0) {
    fail("it cannot listen", error, error_nbytes);
    toy_close(toy);
    return NULL;
  }
  watch(toy, toy->listener);
  return toy;
}

static void* toy_connect(void* transport, int peer, const char* address,
                         char* error, size_t error_nbytes) {
  struct toy* toy = transport;
  if (peer < toy->rank) {
    const struct sockaddr_un theirs = address_of(address);
    const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (connect(fd, (const struct sockaddr*)&theirs, sizeof(theirs)) != 0 ||
        send(fd, &toy->rank, sizeof(toy->rank), MSG_NOSIGNAL) < 0) {
      fail("it cannot connect", error, error_nbytes);
      close(fd);
      return NULL;
    }
    toy->sockets[peer] = fd;
    watch(toy, fd);
  }
  struct connection* connection = malloc(sizeof(*connection));
  connection->toy = toy;
  connection->peer = peer;
  return connection;
}

static void meet(struct toy* toy, int* stranger) {
  int peer = -1;
  const ssize_t count = recv(*stranger, &peer, sizeof(peer), MSG_DONTWAIT);
  if (count < 0 && (errno == EAGAIN || errno == EINTR)) return;
  const int known = count == sizeof(peer) && peer > toy->rank &&
                    peer < toy->size && toy->sockets[peer] < 0;
  if (known) {
    toy->sockets[peer] = *stranger;
    watch(toy, *stranger);
  } else {
    close(*stranger);
  }
  *stranger = -1;
}

static void toy_progress(void* transport) {
  struct toy* toy = transport;
  struct epoll_event events[16];
  int count = epoll_wait(toy->epoll, events, 16, 0);
  const int changed = count > 0;
  while (count == 16) count = epoll_wait(toy->epoll, events, 16, 0);
  for (int i = 0; i < toy->size; ++i) {
    if (toy->strangers[i] < 0 && changed) {
      toy->strangers[i] = accept4(toy->listener, NULL, NULL, SOCK_CLOEXEC);
    }
    if (toy->strangers[i] >= 0) meet(toy, &toy->strangers[i]);
  }
}

static int toy_connected(void* connection, char* error, size_t error_nbytes) {
  struct connection* own = connection;
  (void)error, (void)error_nbytes;
  return own->toy->sockets[own->peer] >= 0;
}

static int socket_of(void* connection) {
  struct connection* own = connection;
  return own->toy->sockets[own->peer];
}

static ssize_t outcome(ssize_t count) {
  if (count >= 0) return count;
  return errno == EAGAIN || errno == EINTR ? 0 : RING_KERAS_TRANSPORT_CLOSED;
}

static ssize_t toy_send(void* connection, const struct iovec* parts,
                        int part_count) {
  struct msghdr message;
  memset(&message, 0, sizeof(message));
  message.msg_iov = (struct iovec*)parts;
  message.msg_iovlen = part_count;
  return outcome(
      sendmsg(socket_of(connection), &message, MSG_DONTWAIT | MSG_NOSIGNAL));
}

static ssize_t toy_receive(void* connection, const struct iovec* parts,
                           int part_count) {
  struct msghdr message;
  memset(&message, 0, sizeof(message));
  message.msg_iov = (struct iovec*)parts;
  message.msg_iovlen = part_count;
  const ssize_t count = recvmsg(socket_of(connection), &message, MSG_DONTWAIT);
  return count == 0 ? RING_KERAS_TRANSPORT_CLOSED : outcome(count);
}

/* The kernel has it. */
static int toy_sent(void* connection) {
  (void)connection;
  return 1;
}

static void toy_finish(void* connection) {
  shutdown(socket_of(connection), SHUT_WR);
}

static const char* toy_failure(void* connection) {
  (void)connection;
  return NULL;
}

static int toy_wait(void* transport) {
  return getenv("TOY_TELLS_NOTHING") != NULL ? -1
                                             : ((struct toy*)transport)->epoll;
}

/* The kernel closes its sockets. */
static void toy_lose(void* transport, int peer) { (void)transport, (void)peer; }

static void toy_disconnect(void* connection) {
  struct connection* own = connection;
  int* socket = &own->toy->sockets[own->peer];
  if (*socket >= 0) close(*socket);
  *socket = -1;
  free(own);
}

static const struct ring_keras_transport_calls calls = {
    .version = TOY_VERSION,
    .name = "toy 1",
    .open = toy_open,
    .connect = toy_connect,
    .connected = toy_connected,
    .send = toy_send,
    .receive = toy_receive,
    .sent = toy_sent,
    .finish = toy_finish,
    .failure = toy_failure,
    .wait = toy_wait,
    .progress = toy_progress,
    .lose = toy_lose,
    .disconnect = toy_disconnect,
    .close = toy_close,
};

const struct ring_keras_transport_calls* ring_keras_transport(void) {
  return &calls;
}
