"""Two hosts, and somebody on the link between them who reads and changes packets."""

from __future__ import annotations

import struct

from support.lossy_link import LossyLink

# Only what carries a tensor's data is as large.
_DATA_NBYTES = 1000
_CHECKSUM_OFFSET = 16
_TCP = 6


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
        if packet[0] >> 4 != 4 or packet[9] != _TCP:
            return packet
        segment = packet[(packet[0] & 15) * 4 :]
        data_start = (segment[12] >> 4) * 4
        if len(segment) - data_start < _DATA_NBYTES:
            return packet
        self._large += 1
        if self._flip_after is None or self._large <= self._flip_after or self.flipped:
            return packet
        self.flipped += 1
        changed = bytearray(segment)
        changed[self._flip_at] ^= 0x40
        changed[_CHECKSUM_OFFSET : _CHECKSUM_OFFSET + 2] = b"\0\0"
        pseudo_header = packet[12:20] + struct.pack("!BBH", 0, _TCP, len(changed))
        checksum = _internet_checksum(pseudo_header + bytes(changed))
        struct.pack_into("!H", changed, _CHECKSUM_OFFSET, checksum)
        return packet[: len(packet) - len(segment)] + bytes(changed)


def _internet_checksum(data: bytes) -> int:
    """RFC 1071's."""
    data += bytes(len(data) % 2)
    total = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF
