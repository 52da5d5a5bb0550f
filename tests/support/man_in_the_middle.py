"""Two hosts, and somebody on the link between them who reads and changes packets."""

from __future__ import annotations

import itertools
import struct
from collections.abc import Callable

import numpy as np

from support.carried_hosts import CarriedHosts, Fate
from support.packets import segment_of, with_segment

# Only what carries a tensor's data is as large.
_DATA_NBYTES = 1000

# So many bytes are of one tensor, and of one place in it, alone.
_KNOWN_NBYTES = 16

# Gets what each large packet carries, and says which of its bytes changes, if any.
ChooseByte = Callable[[bytes], int | None]


def after(packets: int, at: int) -> ChooseByte:
    """A byte of the packet after so many large ones, from its end if negative."""
    numbers = itertools.count()
    return lambda data: at % len(data) if next(numbers) >= packets else None


def where(*tensors: np.ndarray, at: int) -> ChooseByte:
    """That byte of the first element that passes, of one of those tensors.

    Looked for are elements of each KB, so that every packet has some.
    """
    looked_for = {
        whole[first : first + _KNOWN_NBYTES]
        for whole in (tensor.tobytes() for tensor in tensors)
        for first in range(0, len(whole), 1000)
    }

    def choose(data: bytes) -> int | None:
        for start in range(len(data)):
            if data[start : start + _KNOWN_NBYTES] in looked_for:
                return start + at
        return None

    return choose


class ManInTheMiddle(CarriedHosts):
    """A link whose every packet somebody sees.

    Args:
        choose: Which byte changes by one bit, and its packet's checksum with it: one
            byte of one stream, whenever it is sent. None: he only reads.
    """

    def __init__(self, choose: ChooseByte | None = None) -> None:
        super().__init__(2)
        self._choose = choose
        # Of each connection's direction, the number of the byte after the last.
        self._next: dict[bytes, int] = {}
        # Whose byte changes, and its number.
        self._target: tuple[bytes, int] | None = None
        self._seen = bytearray()

    @property
    def flipped(self) -> bool:
        return self._target is not None

    def saw(self, text: bytes) -> bool:
        """Whether that was in some packet."""
        return text in self._seen

    def fate(self, host: int, packet: bytes) -> Fate:
        return super().fate(host, self._changed(packet))

    def _changed(self, packet: bytes) -> bytes:
        self._seen += packet
        segment = segment_of(packet)
        if segment is None:
            return packet
        start = (segment[12] >> 4) * 4
        flow = packet[12:20] + segment[:4]
        (number,) = struct.unpack("!I", segment[4:8])
        self._look(flow, number, segment[start:])
        if self._target is None or self._target[0] != flow:
            return packet
        offset = start + _distance(number, self._target[1])
        if not start <= offset < len(segment):
            return packet
        changed = bytearray(segment)
        changed[offset] ^= 0x40
        return with_segment(packet, bytes(changed))

    def _look(self, flow: bytes, number: int, data: bytes) -> None:
        # What is sent again tells nothing of how far the ranks are.
        is_new = _distance(self._next.get(flow, number), number) >= 0
        if not is_new:
            return
        self._next[flow] = (number + len(data)) % 2**32
        if self._choose is None or self.flipped or len(data) < _DATA_NBYTES:
            return
        offset = self._choose(data)
        if offset is not None:
            self._target = flow, (number + offset) % 2**32


def _distance(first: int, second: int) -> int:
    """From one byte's number to another's, which begin again at 2**32."""
    return (second - first + 2**31) % 2**32 - 2**31
