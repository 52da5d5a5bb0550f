"""A link of two hosts beside their Ethernet, which says how fast it is."""

from __future__ import annotations

import ctypes
import fcntl
import os
import select
import socket
import struct
import threading

from support.network import Hosts, run

_TUNSETIFF = 0x400454CA
_IFF_TUN = 0x0001
_IFF_NO_PI = 0x1000
_MAX_PACKET_NBYTES = 65536

_SPEED_MBPS = 400_000
_SIOCETHTOOL = 0x8946
_ETHTOOL_GSET = 1
_ETHTOOL_SSET = 2
# Of `struct ethtool_cmd`: its size, and where it has the halves of the speed.
_COMMAND_NBYTES = 44
_SPEED_PLACES = (12, 28)


def open_tun(name: str) -> int:
    """A TUN device of the namespace that the calling thread is in."""
    end = os.open("/dev/net/tun", os.O_RDWR | os.O_CLOEXEC)
    request = struct.pack("16sH", name.encode(), _IFF_TUN | _IFF_NO_PI)
    fcntl.ioctl(end, _TUNSETIFF, request)
    return end


class TunLink:
    """A TUN device on each of two hosts, and a thread that carries packets.

    The kernel believes what it is told of a device's speed: hosts think this one
    faster than their Ethernet.

    Args:
        hosts: Which exist; the first two get the link.
        alive: Whether packets arrive.
        device: Its name.
        addresses: Of the two hosts.
    """

    def __init__(
        self,
        hosts: Hosts,
        alive: bool = True,
        device: str = "fast0",
        addresses: tuple[str, str] = ("10.225.7.1", "10.225.7.2"),
    ) -> None:
        self._alive = alive
        self._stop = threading.Event()
        self._ends = []
        for host, (name, address) in enumerate(
            zip(hosts.names, addresses, strict=False)
        ):
            self._ends.append(hosts.inside(host, lambda: open_tun(device)))
            hosts.inside(host, lambda: _set_speed(device, _SPEED_MBPS))
            at = ["ip", "-n", name]
            run(*at, "address", "add", f"{address}/24", "dev", device)
            run(*at, "link", "set", device, "up")
        self.carried_nbytes = 0
        self._thread = threading.Thread(target=self._carry)
        self._thread.start()

    def close(self) -> None:
        """The devices are gone."""
        self._stop.set()
        self._thread.join()
        for end in self._ends:
            os.close(end)

    def _carry(self) -> None:
        while not self._stop.is_set():
            ready, _, _ = select.select(self._ends, [], [], 0.05)
            for end in ready:
                packet = os.read(end, _MAX_PACKET_NBYTES)
                if self._alive:
                    self.carried_nbytes += len(packet)
                    os.write(self._ends[1 - self._ends.index(end)], packet)


def _set_speed(device: str, speed_mbps: int) -> None:
    command = bytearray(_COMMAND_NBYTES)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        for number in (_ETHTOOL_GSET, _ETHTOOL_SSET):
            struct.pack_into("I", command, 0, number)
            if number == _ETHTOOL_SSET:
                for place, half in zip(
                    _SPEED_PLACES, divmod(speed_mbps, 1 << 16)[::-1], strict=True
                ):
                    struct.pack_into("H", command, place, half)
            at = (ctypes.c_char * _COMMAND_NBYTES).from_buffer(command)
            name = device.encode()
            request = struct.pack("16sQ16x", name, ctypes.addressof(at))
            fcntl.ioctl(any_socket, _SIOCETHTOOL, request)
            del at
