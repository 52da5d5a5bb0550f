"""Packets of IPv4 and TCP, made or changed."""

from __future__ import annotations

import struct

TCP = 6
UDP = 17
SYN, RST, ACK = 2, 4, 16

_IP_CHECKSUM_OFFSET = 10
_TCP_CHECKSUM_OFFSET = 16


def segment_of(packet: bytes, protocol: int = TCP) -> bytes | None:
    """What a packet of IPv4 carries of that protocol; None if nothing."""
    if packet[0] >> 4 != 4 or packet[9] != protocol:
        return None
    return packet[(packet[0] & 15) * 4 :]


def ends_of(packet: bytes, segment: bytes) -> frozenset[bytes]:
    """Of its connection, whichever sends."""
    return frozenset((packet[12:16] + segment[:2], packet[16:20] + segment[2:4]))


def with_segment(packet: bytes, segment: bytes) -> bytes:
    """The packet with another segment of TCP as long as its own."""
    changed = bytearray(segment)
    changed[_TCP_CHECKSUM_OFFSET : _TCP_CHECKSUM_OFFSET + 2] = b"\0\0"
    pseudo_header = packet[12:20] + struct.pack("!BBH", 0, TCP, len(changed))
    checksum = internet_checksum(pseudo_header + bytes(changed))
    struct.pack_into("!H", changed, _TCP_CHECKSUM_OFFSET, checksum)
    return packet[: (packet[0] & 15) * 4] + bytes(changed)


def reset_of(packet: bytes, segment: bytes) -> bytes:
    """What ends a connection for who has sent this segment, which has an ACK."""
    reset = segment[2:4] + segment[0:2] + segment[8:12] + bytes(4)
    reset += struct.pack("!BBHHH", 5 << 4, RST, 0, 0, 0)
    header = bytearray(20)
    struct.pack_into("!BxHxxxxBB", header, 0, 0x45, 20 + len(reset), 64, TCP)
    header[12:20] = packet[16:20] + packet[12:16]
    checksum = internet_checksum(bytes(header))
    struct.pack_into("!H", header, _IP_CHECKSUM_OFFSET, checksum)
    return with_segment(bytes(header), reset)


def internet_checksum(data: bytes) -> int:
    """RFC 1071's."""
    data += bytes(len(data) % 2)
    total = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF
