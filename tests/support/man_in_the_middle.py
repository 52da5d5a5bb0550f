"""Two hosts, and somebody on the link between them who reads and changes packets."""

from __future__ import annotations

from support.lossy_link import LossyLink
from support.packets import segment_of, with_segment

# Only what carries a tensor's data is as large.
_DATA_NBYTES = 1000


class ManInTheMiddle(LossyLink):
    """A link whose every packet somebody sees.

    Args:
        flip_after: Of so many large packets, the next one is changed by one bit, and
            its checksum with it; None: he only reads.
        flip_at: In which byte of that packet. Of numbers of 32 bits -500 is the lowest,
            -497 the one with the exponent.
    """

    def __init__(self, flip_after: int | None = None, flip_at: int = -500) -> None:
        super().__init__(loss=0.0, delay_s=0.0)
        self._flip_after = flip_after
        self._flip_at = flip_at
        self._large = 0
        self.flipped = 0
        self._seen = bytearray()

    def saw(self, text: bytes) -> bool:
        """Whether that was in some packet."""
        return text in self._seen

    def handle(self, packet: bytes) -> bytes:
        self._seen += packet
        segment = segment_of(packet)
        if segment is None:
            return packet
        data_start = (segment[12] >> 4) * 4
        if len(segment) - data_start < _DATA_NBYTES:
            return packet
        self._large += 1
        if self._flip_after is None or self._large <= self._flip_after or self.flipped:
            return packet
        self.flipped += 1
        changed = bytearray(segment)
        changed[self._flip_at] ^= 0x40
        return with_segment(packet, bytes(changed))
