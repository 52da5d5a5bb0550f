"""Which network ringrun and its agents take, where hosts have several or one."""

from __future__ import annotations

import secrets
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.network import run
from support.ringrun import Ringrun
from support.ssh_hosts import SshHosts

pytestmark = pytest.mark.hosts

JOIN = """
import numpy as np
from ring_keras import _native
from ring_keras.config import Config
sys.modules["tensorflow"] = None  # Or errors would be made of its, in seconds.
_native.init(**Config.from_environment().init_options())
print(_native.allreduce(np.ones(90000, np.float32), name="x")[0])
_native.shutdown("done")
"""


@pytest.fixture
def ipv6_only(hosts: SshHosts) -> Iterator[SshHosts]:
    """The hosts without their addresses of IPv4."""
    for name in hosts.names:
        run("ip", "-n", name, "-4", "address", "flush", "dev", "eth0")
    yield hosts
    for name, address in zip(hosts.names, hosts.addresses, strict=True):
        run("ip", "-n", name, "address", "add", f"{address}/24", "dev", "eth0")


def test_hosts_without_ipv4_meet_through_ssh(
    ringrun: Ringrun, ipv6_only: SshHosts
) -> None:
    names = ",".join(f"[{address}]:1" for address in ipv6_only.ipv6_addresses[:2])

    finished = ringrun.run(
        JOIN, "-H", names, "--ssh-args", ipv6_only.ssh_args, size=None
    )

    assert sorted(finished.stdout.decode().splitlines()) == ["[0] 2.0", "[1] 2.0"], (
        finished.stderr.decode()
    )
    ipv6_only.wait_until_empty()


def test_hosts_without_ipv4_or_ssh(ipv6_only: SshHosts, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.touch(mode=0o600)
    secret.write_text(secrets.token_hex(32))
    started: list[tuple[Ringrun, subprocess.Popen[bytes]]] = []
    for node in range(2):
        ringrun = Ringrun(tmp_path, ipv6_only.on(node))
        options = (
            *("--nnodes", "2", "--node-rank", str(node), "--nproc-per-node", "1"),
            *("--rendezvous", f"[{ipv6_only.ipv6_addresses[0]}]:4711"),
            *("--secret-file", str(secret)),
        )
        started.append((ringrun, ringrun.start(JOIN, *options, size=None)))

    for rank, (ringrun, process) in enumerate(started):
        finished = ringrun.finish(process)
        assert finished.stdout == f"[{rank}] 2.0\n".encode(), finished.stderr.decode()
    ipv6_only.wait_until_empty()


def test_an_interface_that_the_launchers_host_lacks(
    ringrun: Ringrun, hosts: SshHosts
) -> None:
    options = ["-H", "node0:1,node1:1", "--ssh-args", hosts.ssh_args]

    finished = ringrun.run(
        'note("started")', *options, "--network-interface", "eth7", size=None
    )

    assert finished.returncode == 1
    assert (
        "this host has no network interface eth7 that is up and that other hosts could "
        f"reach. It has {hosts.addresses[0]} on eth0, {hosts.ipv6_addresses[0]} on eth0"
    ) in finished.verdict
    assert not (ringrun.directory / "started").exists()
    hosts.wait_until_empty()
