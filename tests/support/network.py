"""Hosts as network namespaces of this machine.

Each host is a namespace with one veth pair to a bridge, which has a namespace
of its own. Needs root, and leaves nothing behind.
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
Some = TypeVar("Some", bound="Hosts")


def run(*command: str) -> str:
    """Runs a command to its end; what it printed."""
    done = subprocess.run(
        command, check=True, capture_output=True, text=True, timeout=20
    )
    return done.stdout


def address_of(host: int) -> str:
    """Where its ranks are reached."""
    return f"10.223.7.{host + 1}"


def enter(namespace: str) -> None:
    """The calling thread enters `namespace`, and with it all that it starts."""
    libc = ctypes.CDLL(None, use_errno=True)
    with Path("/run/netns", namespace).open() as handle:
        if libc.setns(handle.fileno(), 0) != 0:
            raise OSError(ctypes.get_errno(), "setns")


def inside(namespace: str, function: Callable[[], Result]) -> Result:
    """Calls `function` on a thread of its own that has entered `namespace`."""

    def enter_and_call() -> Result:
        enter(namespace)
        return function()

    with ThreadPoolExecutor(1) as thread:
        return thread.submit(enter_and_call).result()


class Hosts:
    """Namespaces, each with its loopback; a context manager.

    Args:
        size: Number of hosts.
    """

    def __init__(self, size: int) -> None:
        self.names = [f"ring-{os.getpid()}-{host}" for host in range(size)]
        self.addresses = [address_of(host) for host in range(size)]

    def __enter__(self: Some) -> Some:
        try:
            self.make()
        except BaseException:
            self.remove()
            raise
        return self

    def __exit__(
        self,
        exception_type: type[BaseException] | None,
        exception: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.remove()

    def make(self) -> None:
        """Makes the namespaces."""
        for name in self.names:
            run("ip", "netns", "add", name)
            run("ip", "-n", name, "link", "set", "lo", "up")

    def remove(self) -> None:
        """Removes what there is of it."""
        for name in self.names:
            subprocess.run(["ip", "netns", "delete", name], capture_output=True)

    def command(self, host: int, *words: str) -> list[str]:
        """The command that runs `words` on a host."""
        return ["ip", "netns", "exec", self.names[host], *words]

    def inside(self, host: int, function: Callable[[], Result]) -> Result:
        """Calls `function` on a thread of its own on a host."""
        return inside(self.names[host], function)


class Network(Hosts):
    """Hosts around one switch.

    Args:
        size: Number of hosts.
        rate: Of each link, in each direction, as `tc` takes it; None: as fast
            as the machine.
        congestion_control: What TCP uses on all hosts; None: the default.
        ipv6: Whether the hosts have addresses of IPv6, and none else.
    """

    def __init__(
        self,
        size: int,
        rate: str | None = None,
        congestion_control: str | None = None,
        ipv6: bool = False,
    ) -> None:
        super().__init__(size)
        if ipv6:
            self.addresses = [f"fd07::{host + 1}" for host in range(size)]
        self._switch = f"ring-{os.getpid()}-switch"
        self._rate = rate
        self._congestion_control = congestion_control

    def sent_nbytes(self, host: int) -> int:
        """What a host has sent to the others so far."""
        path = "/sys/class/net/eth0/statistics/tx_bytes"
        return int(run(*self.command(host, "cat", path)))

    def cutting(self, host: int, other: int) -> list[list[str]]:
        """The commands that part two hosts from each other, and from no other."""
        # Isolated ports reach all others.
        at = ["bridge", "-netns", self._switch, "link", "set", "dev"]
        return [[*at, f"port{end}", "isolated", "on"] for end in (host, other)]

    def make(self) -> None:
        super().make()
        switch = self._switch
        run("ip", "netns", "add", switch)
        run("ip", "-n", switch, "link", "add", "bridge", "type", "bridge")
        run("ip", "-n", switch, "link", "set", "bridge", "up")
        for host, name in enumerate(self.names):
            port = f"port{host}"
            run(
                *("ip", "-n", name, "link", "add", "eth0", "type", "veth"),
                *("peer", "name", port, "netns", switch),
            )
            run("ip", "-n", switch, "link", "set", port, "master", "bridge", "up")
            address = self.addresses[host]
            # An address of IPv6 is usable at once: nobody else could have it.
            place = [f"{address}/64", "nodad"] if ":" in address else [f"{address}/24"]
            run("ip", "-n", name, "address", "add", *place, "dev", "eth0")
            run("ip", "-n", name, "link", "set", "eth0", "up")
            if self._rate is not None:
                self.set_rate(host, self._rate)
            if self._congestion_control is not None:
                control = f"net.ipv4.tcp_congestion_control={self._congestion_control}"
                run(*self.command(host, "sysctl", "-w", control))

    def remove(self) -> None:
        super().remove()
        subprocess.run(["ip", "netns", "delete", self._switch], capture_output=True)

    def set_rate(self, host: int, rate: str | None) -> None:
        """Limits a host's link, in each direction, as `tc` takes it; None: no more."""
        for namespace, device in (
            (self.names[host], "eth0"),
            (self._switch, f"port{host}"),
        ):
            at = ["dev", device, "root"]
            if rate is None:
                # There may be none.
                command = ["tc", "-n", namespace, "qdisc", "delete", *at]
                subprocess.run(command, capture_output=True)
            else:
                # With less burst, several streams do not reach the rate.
                shape = ["tbf", "rate", rate, "burst", "256kb", "latency", "20ms"]
                run("tc", "-n", namespace, "qdisc", "replace", *at, *shape)
