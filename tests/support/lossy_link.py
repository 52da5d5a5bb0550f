"""Two hosts whose only link delays and loses packets.

Each host has a TUN device, and a thread of this process carries packets between
the two, in user space: no kernel module is needed. Needs root.
"""

from __future__ import annotations

import heapq
import itertools
import os
import random
import select
import threading
import time

from support.network import Hosts, run
from support.tun_link import open_tun

_MAX_PACKET_NBYTES = 65536


class LossyLink(Hosts):
    """Two hosts, and the link.

    Args:
        loss: Share of packets that get lost, the same ones in every run.
        delay_s: How long each packet takes. Every tenth takes twice as long, so
            that packets overtake each other.
    """

    def __init__(self, loss: float, delay_s: float) -> None:
        super().__init__(2)
        self._loss = loss
        self._delay_s = delay_s
        self._ends: list[int] = []
        self._chance = random.Random(1)
        self._numbers = itertools.count()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._carry)
        self.carried = 0
        self.lost = 0

    def make(self) -> None:
        super().make()
        for host, name in enumerate(self.names):
            self._ends.append(self.inside(host, lambda: open_tun("tun0")))
            own, other = self.addresses[host], self.addresses[1 - host]
            at = ["ip", "-n", name]
            run(*at, "address", "add", own, "peer", other, "dev", "tun0")
            run(*at, "link", "set", "tun0", "up")
        self._thread.start()

    def remove(self) -> None:
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()
        for end in self._ends:
            os.close(end)
        super().remove()

    def handle(self, packet: bytes) -> bytes:
        """Gets each packet that has been sent; what it returns is carried."""
        return packet

    def fate(self, host: int, packet: bytes) -> list[tuple[float, int, bytes]]:
        """What becomes of a packet that `host` has sent.

        Returns:
            After how many seconds which host gets what.
        """
        packet = self.handle(packet)
        if self._chance.random() < self._loss:
            self.lost += 1
            return []
        is_late = next(self._numbers) % 10 == 9
        return [(self._delay_s * (2 if is_late else 1), 1 - host, packet)]

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
