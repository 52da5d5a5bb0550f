"""Hosts joined by links of limited speed, as network namespaces of this machine.

Each host is a namespace with one veth pair to a bridge, which has a namespace
of its own. Both ends of each link are shaped, so that every host sends and
receives at the given rate. Needs root, and leaves nothing behind.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import TypeVar

Result = TypeVar("Result")


def ip(*words: str) -> None:
    """Runs one command of iproute2."""
    subprocess.run(["ip", *words], check=True, capture_output=True, timeout=20)


class Network:
    """`size` hosts around one switch; a context manager.

    Args:
        size: Number of hosts.
        rate: Of each link, in each direction, as `tc` takes it; None: as fast
            as the machine.
        congestion_control: What TCP uses on all hosts; None: the default.
    """

    def __init__(
        self,
        size: int,
        rate: str | None = "1gbit",
        congestion_control: str | None = None,
    ) -> None:
        prefix = f"ring-{os.getpid()}"
        self._switch = f"{prefix}-sw"
        self.hosts = [f"{prefix}-h{host}" for host in range(size)]
        self.addresses = [f"10.223.7.{host + 1}" for host in range(size)]
        self._rate = rate
        self._congestion_control = congestion_control

    def __enter__(self) -> Network:
        try:
            self._make()
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(
        self,
        exception_type: type[BaseException] | None,
        exception: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._remove()

    def command(self, host: int, *words: str) -> list[str]:
        """The command that runs `words` on a host."""
        return ["ip", "netns", "exec", self.hosts[host], *words]

    def inside(self, host: int, function: Callable[[], Result]) -> Result:
        """Calls `function` on a thread of its own that has moved to a host."""

        def enter_and_call() -> Result:
            libc = ctypes.CDLL(None, use_errno=True)
            with Path("/run/netns", self.hosts[host]).open() as handle:
                if libc.setns(handle.fileno(), 0) != 0:
                    raise OSError(ctypes.get_errno(), "setns")
            return function()

        with ThreadPoolExecutor(1) as thread:
            return thread.submit(enter_and_call).result()

    def sent_nbytes(self, host: int) -> int:
        """What a host's interface has sent so far."""
        path = "/sys/class/net/eth0/statistics/tx_bytes"
        command = self.command(host, "cat", path)
        return int(subprocess.run(command, check=True, capture_output=True).stdout)

    def _make(self) -> None:
        ip("netns", "add", self._switch)
        ip("-n", self._switch, "link", "add", "bridge", "type", "bridge")
        ip("-n", self._switch, "link", "set", "bridge", "up")
        for number, host in enumerate(self.hosts):
            port = f"port{number}"
            ip("netns", "add", host)
            ip(
                *("-n", host, "link", "add", "eth0", "type", "veth"),
                *("peer", "name", port, "netns", self._switch),
            )
            ip("-n", self._switch, "link", "set", port, "master", "bridge", "up")
            ip(
                "-n",
                host,
                "address",
                "add",
                f"{self.addresses[number]}/24",
                "dev",
                "eth0",
            )
            ip("-n", host, "link", "set", "eth0", "up")
            ip("-n", host, "link", "set", "lo", "up")
            self._limit(host, "eth0")
            self._limit(self._switch, port)
            if self._congestion_control is not None:
                setting = f"net.ipv4.tcp_congestion_control={self._congestion_control}"
                subprocess.run(
                    self.command(number, "sysctl", "-w", setting),
                    check=True,
                    capture_output=True,
                )

    def _limit(self, namespace: str, device: str) -> None:
        if self._rate is None:
            return
        # With less burst, several streams do not reach the rate.
        shape = ["tbf", "rate", self._rate, "burst", "256kb", "latency", "20ms"]
        subprocess.run(
            ["tc", "-n", namespace, "qdisc", "add", "dev", device, "root", *shape],
            check=True,
            capture_output=True,
        )

    def _remove(self) -> None:
        for name in [*self.hosts, self._switch]:
            subprocess.run(["ip", "netns", "delete", name], capture_output=True)
