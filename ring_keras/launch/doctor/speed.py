"""Measures a connection to a `SpeedServer`, within about a second."""

from __future__ import annotations

import contextlib
import socket
import statistics
import struct
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

__all__ = [
    "ECHO",
    "KEY_NBYTES",
    "NBYTES",
    "SINK",
    "TIMEOUT_S",
    "Speed",
    "measure",
    "reaches",
]

KEY_NBYTES = 32
"""Of what both ends know, as hexadecimal digits. The client says it first."""
ECHO, SINK = b"e", b"s"
"""What the server does with what follows: send each byte back, or count them."""
NBYTES = struct.Struct("!Q")
"""How many it has counted, once the client has said all."""
TIMEOUT_S = 5.0

_CONNECT_TIMEOUT_S = 3.0
_PINGS = 300
_PINGS_S = 0.2
_CHUNK_NBYTES = 1 << 20
# Of Linux's headers, which Python's socket does not name.
_IP_MTU, _IPV6_MTU = 14, 24


@dataclass(frozen=True)
class Speed:
    """Of one connection, or of several between the same two addresses.

    Attributes:
        bytes_per_s: What the other end has received in a second.
        round_trip_s: A byte and its answer: the median.
        mtu: The largest packet that the way takes, as far as the kernel knows.
    """

    bytes_per_s: float
    round_trip_s: float
    mtu: int

    def measured(self) -> dict[str, float]:
        """As a finding has it."""
        return {
            "bytes_per_s": self.bytes_per_s,
            "round_trip_s": self.round_trip_s,
            "mtu_bytes": self.mtu,
        }


def reaches(host: str, port: int, key: str) -> bool:
    """Whether it is the server with this key that answers there."""
    with contextlib.suppress(OSError), _connected(host, port, key):
        return True
    return False


def measure(host: str, port: int, key: str, *, streams: int, lasts_s: float) -> Speed:
    """Round trips first, then as much as goes over so many connections.

    Raises:
        OSError: If one of them breaks, or stalls for `TIMEOUT_S`.
    """
    with _connected(host, port, key) as peer:
        peer.sendall(ECHO)
        round_trip_s = statistics.median(_round_trips(peer))
        ipv6 = peer.family is socket.AF_INET6
        level, option = (
            (socket.IPPROTO_IPV6, _IPV6_MTU) if ipv6 else (socket.IPPROTO_IP, _IP_MTU)
        )
        mtu = peer.getsockopt(level, option)
    with contextlib.ExitStack() as stack:
        peers = [
            stack.enter_context(_connected(host, port, key)) for _ in range(streams)
        ]
        began = time.perf_counter()
        with ThreadPoolExecutor(streams) as threads:
            counts = list(threads.map(lambda peer: _fill(peer, lasts_s), peers))
        seconds = time.perf_counter() - began
    return Speed(sum(counts) / seconds, round_trip_s, mtu)


def _connected(host: str, port: int, key: str) -> socket.socket:
    peer = socket.create_connection((host, port), _CONNECT_TIMEOUT_S)
    try:
        peer.settimeout(TIMEOUT_S)
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        peer.sendall(key.encode())
        if peer.recv(KEY_NBYTES, socket.MSG_WAITALL) != key[::-1].encode():
            raise ConnectionError(f"something else answers at {host}, port {port}")
    except BaseException:
        peer.close()
        raise
    return peer


def _round_trips(peer: socket.socket) -> list[float]:
    took: list[float] = []
    end = time.perf_counter() + _PINGS_S
    while len(took) < _PINGS and (not took or time.perf_counter() < end):
        began = time.perf_counter()
        peer.sendall(b"\0")
        if not peer.recv(1):
            raise ConnectionError("the connection was closed")
        took.append(time.perf_counter() - began)
    return took


def _fill(peer: socket.socket, lasts_s: float) -> int:
    """Sends as fast as it goes; how many bytes have come there."""
    chunk = bytes(_CHUNK_NBYTES)
    peer.sendall(SINK)
    end = time.perf_counter() + lasts_s
    while time.perf_counter() < end:
        peer.sendall(chunk)
    peer.shutdown(socket.SHUT_WR)
    answer = peer.recv(NBYTES.size, socket.MSG_WAITALL)
    if len(answer) != NBYTES.size:
        raise ConnectionError("the connection was closed")
    count: int = NBYTES.unpack(answer)[0]
    return count
