"""Real hosts for ringrun: network namespaces with a real sshd each."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.job import HEARTBEAT_S
from support.ringrun import Ringrun
from support.slurm import MISSING, Slurm
from support.ssh_hosts import SSHD, SshHosts


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hosts that are cut off are given up sooner than in a user's job."""
    monkeypatch.setenv("RING_KERAS_HEARTBEAT_TIMEOUT_S", HEARTBEAT_S)


@pytest.fixture(scope="session")
def all_hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SshHosts]:
    if os.geteuid() != 0:
        pytest.skip("making network namespaces needs root")
    if not SSHD:
        pytest.skip("there is no sshd; Debian's is in openssh-server")
    hosts = SshHosts(3, tmp_path_factory.mktemp("hosts"))
    try:
        hosts.make()
    except (OSError, subprocess.CalledProcessError) as error:
        hosts.remove()
        pytest.skip(f"network namespaces cannot be made here: {error}")
    yield hosts
    hosts.remove()


@pytest.fixture
def hosts(all_hosts: SshHosts) -> Iterator[SshHosts]:
    """Three hosts, with nothing on them but sshd, and their links up."""
    yield all_hosts
    all_hosts.clean()


@pytest.fixture
def ringrun(hosts: SshHosts, tmp_path: Path) -> Iterator[Ringrun]:
    """ringrun on the first host."""
    runner = Ringrun(tmp_path, hosts.on(0))
    yield runner
    runner.close()


@pytest.fixture(scope="module")
def slurm_of_all(
    all_hosts: SshHosts, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Slurm]:
    if MISSING:
        pytest.skip(f"there is no {', '.join(MISSING)}; Debian's are in slurm-wlm")
    slurm = Slurm(all_hosts, tmp_path_factory.mktemp("slurm"))
    try:
        slurm.start()
        yield slurm
    finally:
        slurm.close()
