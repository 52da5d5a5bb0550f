"""What a core spends on one small message of TCP."""

from __future__ import annotations

import socket
import statistics
import time

__all__ = ["message_s"]

_NBYTES = 64  # About an announcement.
_MESSAGES = 2000
_SAMPLES = 21


def message_s() -> float:
    """Seconds to send one and to receive one, on one thread, so without a wait."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        sender = socket.create_connection(server.getsockname())
        receiver, _ = server.accept()
    with sender, receiver:
        sender.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        data, place = bytes(_NBYTES), bytearray(_NBYTES)
        samples = []
        for _ in range(_SAMPLES):
            start = time.perf_counter()
            for _ in range(_MESSAGES):
                sender.send(data)
                receiver.recv_into(place)
            samples.append((time.perf_counter() - start) / _MESSAGES)
    return statistics.median(samples)
