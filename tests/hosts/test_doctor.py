"""`ringrun --check-build` on hosts that a real ssh reaches."""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path

import pytest
from support.doctor import ROOT_DIR, Checked, check_build
from support.network import run
from support.processes import wait_until
from support.ssh_hosts import SshHosts

pytestmark = pytest.mark.hosts

PORT = 4713

Check = Callable[..., Checked]


def python(path: Path, command: str) -> Path:
    """An interpreter of a host's own, by whatever starts it."""
    path.write_text(f'#!/bin/sh\nPYTHONPATH={ROOT_DIR} exec {command} "$@"\n')
    path.chmod(0o755)
    return path


@pytest.fixture
def check(hosts: SshHosts, tmp_path: Path) -> Check:
    """Checks, on the first host."""
    remote_python = python(tmp_path / "python", sys.executable)

    def check(
        names: str, *options: str, remote: Path | None = remote_python
    ) -> Checked:
        more = [] if remote is None else ["--remote-python", str(remote)]
        more += [] if remote is None else ["--ssh-args", hosts.ssh_args]
        return check_build("-H", names, *more, *options, before=hosts.on(0))

    return check


def test_three_hosts_that_are_fit(hosts: SshHosts, check: Check) -> None:
    checked = check("node0:2,node1:2,node2:1")

    assert checked.returncode == 0, checked.report
    assert [host["ranks"] for host in checked.report["hosts"]] == [2, 2, 1]
    for title in ("versions", "clocks"):
        (found,) = checked.between(title)
        assert found["state"] == "ok"
        assert found["hosts"] == hosts.host_names
    reached = {found["hosts"][-1]: found for found in checked.between("reachable")}
    for name, address in zip(hosts.host_names, hosts.addresses, strict=True):
        assert reached[name]["state"] == "ok"
        assert f"{address} on eth0" in reached[name]["found"]
    # Each neighbour on the ring, there and back.
    ways = {tuple(found["hosts"]) for found in checked.between("bandwidth")}
    assert len(ways) == 6
    for found in checked.between("bandwidth"):
        assert found["measured"]["bytes_per_s"] > 0
        assert found["measured"]["mtu_bytes"] == 1500
    (expected,) = checked.between("expected allreduce")
    slowest = expected["measured"]["slowest_bytes_per_s"]
    # 2 (n - 1) / n of a tensor, and n is 3.
    assert expected["measured"]["allreduce_bytes_per_s"] == pytest.approx(
        slowest * 0.75
    )
    hosts.wait_until_empty()


def test_another_keras_and_another_time(
    hosts: SshHosts, check: Check, tmp_path: Path
) -> None:
    if shutil.which("faketime") is None:
        pytest.skip("there is no faketime; Debian's package has its name")
    venv = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True)
    (site,) = venv.glob("lib/python*/site-packages")
    (site / "outer.pth").write_text(sysconfig.get_path("purelib"))
    metadata = site / "keras-3.0.1.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Name: keras\nVersion: 3.0.1\n")
    later = python(tmp_path / "later", f"faketime -f +7s {venv}/bin/python")

    checked = check("node0:1,node1:1", remote=later)

    assert checked.returncode == 0  # Warnings are none.
    (versions,) = checked.between("versions")
    assert versions["state"] == "warning"
    assert "Keras differs" in versions["found"]
    assert "node1: 3.0.1" in versions["found"]
    assert versions["fix"].startswith(f"ssh node1 {later} -m pip install keras==3.")
    (clocks,) = checked.between("clocks")
    assert clocks["state"] == "warning"
    assert clocks["measured"]["ahead_s"] == pytest.approx(7, abs=0.5)
    assert clocks["hosts"] == ["node0", "node1"]
    hosts.wait_until_empty()


def test_a_network_that_only_one_has_and_a_smaller_mtu(
    hosts: SshHosts, check: Check
) -> None:
    at = ["ip", "-n", hosts.names[1]]
    # Up, and with nobody at the other end but the same host.
    run(*at, "link", "add", "net9", "type", "veth", "peer", "name", "net9end")
    try:
        run(*at, "address", "add", "10.99.0.2/24", "dev", "net9")
        for end in ("net9", "net9end"):
            run(*at, "link", "set", end, "up")
        run(*at, "link", "set", "eth0", "mtu", "1400")

        checked = check("node0:1,node1:1")
    finally:
        run(*at, "link", "delete", "net9")
        run(*at, "link", "set", "eth0", "mtu", "1500")

    assert checked.returncode == 0
    reached = {found["hosts"][-1]: found for found in checked.between("reachable")}
    assert "not all at 10.99.0.2 on net9" in reached["node1"]["found"]
    (mtu,) = checked.between("MTU")
    assert mtu["state"] == "warning"
    assert mtu["fix"] == "ssh node0 sudo ip link set dev eth0 mtu 1400"


def test_an_interface_that_no_host_has(hosts: SshHosts, check: Check) -> None:
    checked = check("node0:1,node1:1", "--network-interface", "eth7")

    assert checked.returncode == 1
    for found in checked.between("reachable"):
        assert found["state"] == "failure"
        assert "eth7" in found["found"]
    assert not checked.between("bandwidth")


def test_a_host_where_nobody_listens(hosts: SshHosts, check: Check) -> None:
    """The others are looked at all the same."""
    checked = check("node0:1,node1:1", "-p", "23")

    assert checked.returncode == 1
    (lost,) = checked.of_host("node1", "agent")
    assert "ssh cannot reach it" in lost["found"]
    assert lost["fix"] == "ssh -o BatchMode=yes node1 true"
    (core,) = checked.of_host("node0", "C++ core")
    assert core["state"] == "ok"
    hosts.wait_until_empty()


def test_an_agent_that_waits(hosts: SshHosts, check: Check, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.touch(mode=0o600)
    secret.write_text("ab" * 32)
    words = [str(tmp_path / "python"), "-m", "ring_keras.launch.listening_agent"]
    words += ["--listen", f"node1:{PORT}", "--secret-file", str(secret)]
    log = tmp_path / "log"
    agent = subprocess.Popen(hosts.on(1, *words), stderr=log.open("wb"))
    try:
        wait_until(lambda: "waits at" in log.read_text(), "the agent waits")

        checked = check(
            "node0:1,node1:1",
            *("--agent-port", str(PORT), "--secret-file", str(secret)),
            remote=None,
        )
    finally:
        agent.kill()
        agent.wait(30)

    assert checked.returncode == 0, checked.report
    assert len(checked.between("bandwidth")) == 2
    (core,) = checked.of_host("node1", "C++ core")
    assert core["state"] == "ok"
