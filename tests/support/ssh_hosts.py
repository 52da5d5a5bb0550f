"""Hosts with names of their own and a real sshd each, in network namespaces."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

from support.network import Network, inside, run
from support.processes import is_alive, wait_until, wait_until_dead

SSHD = shutil.which("sshd", path="/usr/sbin:/usr/local/sbin") or ""

_SSHD_CONFIG = """\
ListenAddress {address}
ListenAddress {ipv6_address}
Port 22
HostKey {directory}/host_key
AuthorizedKeysFile {directory}/user_key.pub
PidFile none
PermitRootLogin yes
PasswordAuthentication no
KbdInteractiveAuthentication no
StrictModes no
UsePAM no
LogLevel ERROR
MaxStartups 100
"""

_SSH_CONFIG = """\
IdentityFile {directory}/user_key
IdentitiesOnly yes
UserKnownHostsFile {directory}/known_hosts
GlobalKnownHostsFile /dev/null
StrictHostKeyChecking yes
"""


class SshHosts(Network):
    """Hosts `node0`, `node1`, ... that a user of one can reach by ssh.

    Each has its own address, name and sshd, whose keys the user knows; they share
    the file system.

    Args:
        size: Number of hosts.
        directory: For keys and configurations.
    """

    def __init__(self, size: int, directory: Path) -> None:
        super().__init__(size)
        self.host_names = [f"node{host}" for host in range(size)]
        self.ipv6_addresses = [f"fd07::{host + 1}" for host in range(size)]
        self.ssh_config = directory / "ssh_config"
        self._directory = directory
        self._servers: list[subprocess.Popen[bytes]] = []
        self._was_cut = False

    @property
    def ssh_args(self) -> str:
        """What ssh needs to know this user."""
        return f"-F {self.ssh_config}"

    def search_path(self, directory: Path) -> str:
        """A PATH with the user's ssh, configured, and `ringrun`, made in a folder."""
        directory.mkdir()
        for name, command in (
            ("ssh", f"{shutil.which('ssh')} {self.ssh_args}"),
            ("ringrun", f"{sys.executable} -m ring_keras.launch"),
        ):
            (directory / name).write_text(f'#!/bin/sh\nexec {command} "$@"\n')
            (directory / name).chmod(0o755)
        return f"{directory}:{Path(sys.executable).parent}:{os.environ['PATH']}"

    def on(self, host: int, *words: str) -> list[str]:
        """The command that runs `words` on a host that knows its own name."""
        name = self.host_names[host]
        enter = ["unshare", "--uts", "sh", "-c", f'hostname {name}; exec "$@"', "sh"]
        return self.command(host, *enter, *words)

    def leftovers(self, host: int) -> list[int]:
        """Processes of a host other than sshd's."""
        pids = run("ip", "netns", "pids", self.names[host]).split()
        return [pid for pid in map(int, pids) if is_alive(pid) and not _is_server(pid)]

    def find(self, host: int, text: str) -> list[int]:
        """A host's processes whose command holds `text`, the oldest first."""
        return sorted(pid for pid in self.leftovers(host) if text in _command_of(pid))

    def wait_until_empty(self, timeout_s: float = 30) -> None:
        """Until no host has a process left."""
        hosts = range(len(self.names))
        try:
            wait_until(
                lambda: not any(self.leftovers(host) for host in hosts),
                "no process is left on any host",
                timeout_s,
            )
        except AssertionError as error:
            left = [_command_of(pid) for host in hosts for pid in self.leftovers(host)]
            raise AssertionError(f"{error}: {left}") from None

    def set_link(self, host: int, state: str) -> None:
        """Puts a host's link `down` or `up`, at the switch's end."""
        run(*self._setting_link(host, state))
        self._was_cut |= state == "down"
        if state == "up":  # The host hears of it later: it has no way out until then.
            shown = ("ip", "-n", self.names[host], "link", "show", "eth0")
            wait_until(lambda: "state UP" in run(*shown), f"the link of host {host}")

    def cutting_off(self, host: int) -> list[str]:
        """The command that puts a host's link down, until `set_link`."""
        self._was_cut = True
        return self._setting_link(host, "down")

    def _setting_link(self, host: int, state: str) -> list[str]:
        return ["ip", "-n", self._switch, "link", "set", f"port{host}", state]

    def clean(self) -> None:
        """Kills what a test has left, and mends links."""
        for host in range(len(self.names)):
            self.set_link(host, "up")
            pids = self.leftovers(host)
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            wait_until_dead(pids)
        if self._was_cut:
            # A host may still give up those whom it has asked for in vain.
            for host in range(len(self.names)):
                self._await_servers(host)
            self._was_cut = False

    def make(self) -> None:
        super().make()
        for name, address in zip(self.names, self.ipv6_addresses, strict=True):
            # Usable at once: nobody else could have it.
            place = [f"{address}/64", "dev", "eth0", "nodad"]
            run("ip", "-n", name, "address", "add", *place)
        self._make_keys()
        Path("/run/sshd").mkdir(exist_ok=True)  # sshd wants it.
        hosts_file = "127.0.0.1 localhost\n" + "".join(
            f"{address} {name}\n"
            for address, name in zip(self.addresses, self.host_names, strict=True)
        )
        for host, namespace in enumerate(self.names):
            # `ip netns exec` puts this in place of /etc/hosts.
            own = Path("/etc/netns", namespace)
            own.mkdir(parents=True)
            (own / "hosts").write_text(hosts_file)
            config = self._directory / f"sshd_config{host}"
            config.write_text(
                _SSHD_CONFIG.format(
                    address=self.addresses[host],
                    ipv6_address=self.ipv6_addresses[host],
                    directory=self._directory,
                )
            )
            command = [SSHD, "-D", "-e", "-f", str(config)]
            self._servers.append(
                subprocess.Popen(
                    # If this process is killed, nobody else would end it.
                    ["setpriv", "--pdeathsig", "KILL", *self.on(host, *command)],
                    stderr=(self._directory / f"sshd{host}.log").open("wb"),
                )
            )
        for host in range(len(self.names)):
            self._await_servers(host)

    def _await_servers(self, host: int) -> None:
        """Until it and all others reach each other's sshd."""
        for other in range(len(self.names)):
            for source, target in ((host, other), (other, host)):
                namespace, address = self.names[source], self.addresses[target]
                wait_until(
                    lambda n=namespace, a=(address, 22): inside(n, lambda: _answers(a)),
                    f"host {source} reaches the sshd of host {target}",
                )

    def remove(self) -> None:
        for namespace in self.names:
            with contextlib.suppress(subprocess.CalledProcessError):
                for pid in map(int, run("ip", "netns", "pids", namespace).split()):
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
            shutil.rmtree(Path("/etc/netns", namespace), ignore_errors=True)
        for server in self._servers:
            server.wait(timeout=10)
        with contextlib.suppress(OSError):  # Somebody else's are there.
            Path("/etc/netns").rmdir()
        super().remove()

    def _make_keys(self) -> None:
        for name in ("host_key", "user_key"):
            path = str(self._directory / name)
            run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", path)
        key = " ".join((self._directory / "host_key.pub").read_text().split()[:2])
        known = ",".join(self.host_names + self.addresses + self.ipv6_addresses)
        (self._directory / "known_hosts").write_text(f"{known} {key}\n")
        self.ssh_config.write_text(_SSH_CONFIG.format(directory=self._directory))


def _answers(address: tuple[str, int]) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(address, 1):
        return True
    return False


def _is_server(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/exe").readlink() == Path(SSHD)
    return False


def _command_of(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ").strip()
    return ""
