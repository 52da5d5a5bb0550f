"""A link between two hosts that a fault comes to when a rank says so."""

from __future__ import annotations

import random
import socket
import time

from support.carried_hosts import CarriedHosts, Fate
from support.faults.cases import Case
from support.network import address_of
from support.packets import ACK, RST, SYN, UDP, ends_of, reset_of, segment_of

_DISCARD_PORT = 9
_CUT_S = 2.0
_LATE_S = 0.005


def tell_the_link() -> None:
    """The fault comes as soon as this packet does."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        for host in range(2):  # One is this one.
            sender.sendto(b"now", (address_of(host), _DISCARD_PORT))


class FaultyLink(CarriedHosts):
    """Carries all packets as they are, until `tell_the_link`.

    Args:
        case: Whose fault it is.
    """

    def __init__(self, case: Case) -> None:
        super().__init__(2)
        self._fault = case.fault
        self._lossy_host = case.host_of[case.victim]
        self._random = random.Random(str(case))
        self._new_connections: set[frozenset[bytes]] = set()
        self.begun_at: float | None = None

    def fate(self, host: int, packet: bytes) -> Fate:
        if segment_of(packet, UDP) is not None:
            self.begun_at = time.monotonic()
            return []
        passed = [(0.0, 1 - host, packet)]
        if self.begun_at is None:
            return passed
        number = self._random.random()
        match self._fault:
            case "1 % of packets lost":
                return [] if number < 0.01 else passed
            case "10 % of packets lost":
                return [] if number < 0.1 else passed
            case "packets doubled":
                return 2 * passed if number < 0.3 else passed
            case "packets reordered":
                return [(_LATE_S, 1 - host, packet)] if number < 0.1 else passed
            case "link cut for 2 s":
                return passed if time.monotonic() > self.begun_at + _CUT_S else []
            case "link cut":
                return []
            case "packets lost one way":
                return [] if host == self._lossy_host else passed
            case "connections forgotten":
                return self._told(host, packet)
        raise AssertionError(self._fault)

    def _told(self, host: int, packet: bytes) -> Fate:
        """By who has begun anew, and knows of no connections but those since."""
        segment = segment_of(packet)
        if segment is None:
            return []
        connection = ends_of(packet, segment)
        if segment[13] & (SYN | ACK) == SYN:
            self._new_connections.add(connection)
        if connection in self._new_connections:
            return [(0.0, 1 - host, packet)]
        return [] if segment[13] & RST else [(0.0, host, reset_of(packet, segment))]
