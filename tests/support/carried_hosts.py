"""Hosts whose packets a thread of this process carries.

Each host has a TUN device, and what one of them sends passes through user space: no
kernel module is needed. Needs root.
"""

from __future__ import annotations

import heapq
import itertools
import os
import select
import socket
import threading
import time

from support.network import Hosts, run
from support.tun_link import open_tun

# Of what a host has sent: after how many seconds which host gets what.
Fate = list[tuple[float, int, bytes]]

_MAX_PACKET_NBYTES = 65536
# Of a header of IPv4.
_RECEIVER = slice(16, 20)


class CarriedHosts(Hosts):
    """Hosts around one switch, which is this process.

    Args:
        size: Number of hosts.
    """

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self._host_of = {
            socket.inet_aton(address): host
            for host, address in enumerate(self.addresses)
        }
        self._ends: list[int] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._carry)
        self.carried = 0

    def make(self) -> None:
        super().make()
        for host, (name, address) in enumerate(
            zip(self.names, self.addresses, strict=True)
        ):
            self._ends.append(self.inside(host, lambda: open_tun("eth0")))
            at = ["ip", "-n", name]
            run(*at, "address", "add", f"{address}/24", "dev", "eth0")
            run(*at, "link", "set", "eth0", "up")
        self._thread.start()

    def remove(self) -> None:
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()
        for end in self._ends:
            os.close(end)
        super().remove()

    def fate(self, host: int, packet: bytes) -> Fate:
        """What becomes of a packet that `host` has sent."""
        receiver = self.receiver(packet)
        return [] if receiver is None else [(0.0, receiver, packet)]

    def receiver(self, packet: bytes) -> int | None:
        """The host that it is for; None: none of these."""
        return self._host_of.get(packet[_RECEIVER])

    def _carry(self) -> None:
        under_way: list[tuple[float, int, int, bytes]] = []
        number = itertools.count()
        while not self._stop.is_set():
            left_s = under_way[0][0] - time.monotonic() if under_way else 0.05
            ready, _, _ = select.select(self._ends, [], [], max(0.0, left_s))
            for end in ready:
                packet = os.read(end, _MAX_PACKET_NBYTES)
                now = time.monotonic()
                for delay_s, to, what in self.fate(self._ends.index(end), packet):
                    due = (now + delay_s, next(number), to, what)
                    heapq.heappush(under_way, due)
            while under_way and under_way[0][0] <= time.monotonic():
                _, _, to, what = heapq.heappop(under_way)
                os.write(self._ends[to], what)
                self.carried += 1
