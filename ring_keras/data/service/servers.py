"""TensorFlow's dispatcher and worker, kept off the network where possible.

They listen on all interfaces, and whoever reaches one can have it run any graph.
TensorFlow offers neither another address nor authentication.
"""

import contextlib
import ipaddress
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import tensorflow as tf
from absl import logging

from ring_keras import keras_internals as internals
from ring_keras.config import Config
from ring_keras.errors import RingKerasError

__all__ = ["confine_to_loopback", "dispatcher", "worker"]


@contextlib.contextmanager
def dispatcher(host: str) -> Iterator[str]:
    """Runs a dispatcher on this host, whose own address is `host`.

    Yields:
        Its host and port.
    """
    config = tf.data.experimental.service.DispatcherConfig(port=0)
    server = tf.data.experimental.service.DispatchServer(config)
    try:
        port = int(server.target.rpartition(":")[2])
        _guard(host, port, "dispatcher")
        yield f"{host}:{port}"
    finally:
        internals.stop_data_server(server)


@contextlib.contextmanager
def worker(host: str, dispatcher_address: str, timeout_s: float) -> Iterator[None]:
    """Runs a worker of the dispatcher at that host and port."""
    config = tf.data.experimental.service.WorkerConfig(
        dispatcher_address=dispatcher_address,
        worker_address=f"{host}:%port%",
        port=0,
        dispatcher_timeout_ms=int(timeout_s * 1000),
    )
    server = tf.data.experimental.service.WorkerServer(config)
    try:
        _guard(host, internals.data_server_port(server), "worker")
        yield
    finally:
        internals.stop_data_server(server)


def _guard(host: str, port: int, what: str) -> None:
    if ipaddress.ip_address(host).is_loopback:
        confine_to_loopback(port)
        return
    if Config.from_environment().encrypt:
        raise RingKerasError(
            "[RK530] "
            f"RING_KERAS_ENCRYPT=1, and TensorFlow's {what} cannot encrypt what it "
            f"sends from {host}. Keep the data service on one host (127.0.0.1), or use "
            "a network that is encrypted itself (WireGuard, IPsec) without "
            "RING_KERAS_ENCRYPT."
        )
    logging.warning(
        "[RK531] ring_keras.data.service: TensorFlow's %s listens on port %d of all "
        "interfaces, without authentication: let no one you do not trust reach it.",
        what,
        port,
    )


def confine_to_loopback(port: int) -> None:
    """Makes this process's listener on a port deaf to other hosts.

    TensorFlow has bound the socket already, to all addresses; what remains is to bind
    it to the loopback device.

    Raises:
        RingKerasError: If that is not possible.
    """
    confined = 0
    for listener in _listeners(port):
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b"lo\0")
        except OSError as error:
            raise RingKerasError(
                "[RK530] "
                f"Port {port} of TensorFlow's data service cannot be kept off the "
                f"network: {error}. It needs Linux 5.7 or newer, or root."
            ) from error
        confined += 1
    if not confined:
        raise RingKerasError(f"[RK530] This process has no listener on port {port}.")


def _listeners(port: int) -> Iterator[socket.socket]:
    """This process's sockets that listen on a port, under descriptors of our own."""
    for entry in Path("/proc/self/fd").iterdir():
        try:
            if not os.fspath(entry.readlink()).startswith("socket:"):
                continue
            candidate = socket.socket(fileno=os.dup(int(entry.name)))
        except OSError:
            continue  # Closed in the meantime.
        with candidate:
            if _listens_on(candidate, port):
                yield candidate


def _listens_on(candidate: socket.socket, port: int) -> bool:
    if candidate.family not in (socket.AF_INET, socket.AF_INET6):
        return False
    with contextlib.suppress(OSError):
        listens = candidate.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
        return bool(listens) and candidate.getsockname()[1] == port
    return False
