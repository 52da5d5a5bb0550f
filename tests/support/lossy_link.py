"""Two hosts whose only link delays and loses packets."""

from __future__ import annotations

import itertools
import random

from support.carried_hosts import CarriedHosts, Fate


class LossyLink(CarriedHosts):
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
        self._chance = random.Random(1)
        self._numbers = itertools.count()
        self.lost = 0

    def fate(self, host: int, packet: bytes) -> Fate:
        if self._chance.random() < self._loss:
            self.lost += 1
            return []
        is_late = next(self._numbers) % 10 == 9
        return [(self._delay_s * (2 if is_late else 1), 1 - host, packet)]
