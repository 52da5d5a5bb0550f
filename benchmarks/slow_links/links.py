"""Hosts whose links have a rate, and may have a delay and lose packets, too."""

from __future__ import annotations

import random
import time

from benchmarks.scaling.launch import CarriedHosts, Fate, Hosts, Network

# As much as that may wait before a link; what comes on top gets lost.
_QUEUE_S = 0.1


def make_hosts(size: int, links: str | None = None) -> Hosts:
    """Hosts around one switch.

    Args:
        size: How many.
        links: `RATE`, as `tc` takes it, for links without delay; or `RATE,DELAY,LOSS`,
            such as "20mbit,40ms,1%", of which the delay is that of a packet there and
            of its answer back; None: as fast as the machine.
    """
    if links is None or "," not in links:
        return Network(size, links)
    rate, delay, loss = links.split(",")
    return _SlowHosts(
        size,
        float(rate.removesuffix("mbit")) * 1e6,
        float(delay.removesuffix("ms")) / 1e3,
        float(loss.removesuffix("%")) / 100,
    )


class _SlowHosts(CarriedHosts):
    """Each has a link to the switch, whose two directions are each as fast.

    Args:
        size: How many.
        bits_per_s: Of each link, in each direction.
        round_trip_s: Of a small packet and its answer.
        loss: Share of packets that get lost.
    """

    def __init__(
        self, size: int, bits_per_s: float, round_trip_s: float, loss: float
    ) -> None:
        super().__init__(size)
        self._bits_per_s = bits_per_s
        self._delay_s = round_trip_s / 2
        self._loss = loss
        self._chance = random.Random(1)
        # When each direction of each link has passed on all that it has taken.
        self._is_free_at: dict[tuple[int, str], float] = {}

    def fate(self, host: int, packet: bytes) -> Fate:
        receiver = self.receiver(packet)
        if receiver is None or self._chance.random() < self._loss:
            return []
        now = at = time.monotonic()
        for link in ((host, "out"), (receiver, "in")):
            begin = max(at, self._is_free_at.get(link, 0.0))
            if begin - at > _QUEUE_S:
                return []
            at = begin + len(packet) * 8 / self._bits_per_s
            self._is_free_at[link] = at
        return [(at - now + self._delay_s, receiver, packet)]
