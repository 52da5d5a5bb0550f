"""Hosts without ssh, and a store of its own: what only links between hosts show."""

from __future__ import annotations

import os
import re
import secrets
import subprocess
import sys
from pathlib import Path

import pytest
from support.processes import wait_until
from support.ringrun import Ringrun
from support.ssh_hosts import SshHosts

pytestmark = pytest.mark.hosts

JOIN = """
import numpy as np
from ring_keras import _native
from ring_keras.config import Config
sys.modules["tensorflow"] = None  # Or errors would be made of its, in seconds.
_native.init(**Config.from_environment().init_options())
"""


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    file = tmp_path / "secret"
    file.touch(mode=0o600)
    file.write_text(secrets.token_hex(32))
    return file


def start_nodes(
    hosts: SshHosts, directory: Path, secret: Path, script: str
) -> list[tuple[Ringrun, subprocess.Popen[bytes]]]:
    """A job of node0 with one rank and node1 with two."""
    started = []
    for node, ranks in enumerate([1, 2]):
        ringrun = Ringrun(directory, hosts.on(node))
        options = (
            *("--nnodes", "2", "--node-rank", str(node)),
            *("--nproc-per-node", str(ranks), "--secret-file", str(secret)),
            *("--rendezvous", "node0:4711", "--grace-period", "2"),
        )
        started.append((ringrun, ringrun.start(script, *options, size=None)))
    return started


def test_two_nodes_are_one_job(hosts: SshHosts, tmp_path: Path, secret: Path) -> None:
    script = JOIN + (
        "print(_native.topology()[2:], os.environ['HOROVOD_CROSS_RANK'],"
        "_native.allreduce(np.ones(2, np.float32), name='x'))\n"
        "_native.shutdown('done')\n"
    )

    started = start_nodes(hosts, tmp_path, secret, script)

    first, second = [ringrun.finish(process) for ringrun, process in started]
    assert first.stdout == b"[0] (0, 1, 0, 2) 0 [3. 3.]\n"
    assert sorted(second.stdout.decode().splitlines()) == [
        "[1] (0, 2, 1, 2) 1 [3. 3.]",
        "[2] (1, 2, 0, 1) 0 [3. 3.]",
    ]
    hosts.wait_until_empty()


def test_a_nodes_link_is_cut(hosts: SshHosts, tmp_path: Path, secret: Path) -> None:
    script = JOIN + (
        "note(f'ready{rank}')\n"
        "subprocess.Popen(['sleep', '600'], start_new_session=True)\n"
        "while True: _native.allreduce(np.ones(9, np.float32), name='gradient')\n"
    )
    started = start_nodes(hosts, tmp_path, secret, script)
    for rank in range(3):
        started[0][0].noted(f"ready{rank}")

    hosts.set_link(1, "down")

    first, second = [ringrun.finish(process) for ringrun, process in started]
    assert first.returncode == second.returncode == 1
    assert "node 1 (host node1) was lost: " in first.verdict
    assert re.search("node 0 at node0:4711 was lost: ", second.stderr.decode())
    hosts.wait_until_empty()


@pytest.mark.slow
def test_a_stores_host_that_was_cut_off_serves_again(
    hosts: SshHosts, tmp_path: Path, secret: Path
) -> None:
    script = tmp_path / "rank.py"
    script.write_text(
        f"import sys\n{JOIN}"
        "print('joined', flush=True)\n"
        "if sys.argv[1] == 'wait': _native.barrier() if _native.topology()[0] else"
        " sys.stdin.read()\n"
        "_native.shutdown('done')\n"
    )

    def start(rank: int, what: str) -> subprocess.Popen[bytes]:
        environment = os.environ | {
            "RING_KERAS_RANK": str(rank),
            "RING_KERAS_SIZE": "2",
            "RING_KERAS_STORE_ADDRESS": "node0:4711",
            "RING_KERAS_TOKEN_FILE": str(secret),
        }
        return subprocess.Popen(
            hosts.on(rank + 1, sys.executable, str(script), what),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
        )

    command = [sys.executable, "-m", "ring_keras.rendezvous", "--listen", "node0:4711"]
    command += ["--size", "2", "--secret-file", str(secret)]
    store = subprocess.Popen(hosts.on(0, *command))
    try:
        cut = [start(rank, "wait") for rank in range(2)]
        for process in cut:
            assert process.stdout is not None
            assert process.stdout.readline() == b"joined\n"
        hosts.set_link(0, "down")
        # It has lost the store, and its part of the job with it.
        wait_until(lambda: cut[1].poll() is not None, "rank 1 has ended", 60)
        assert cut[1].returncode != 0
        cut[0].kill()
        hosts.set_link(0, "up")
        again = [start(rank, "go") for rank in range(2)]
        for process in again:
            assert process.communicate(timeout=60)[0] == b"joined\n"
            assert process.returncode == 0
    finally:
        store.terminate()
        assert store.wait(timeout=30) == 0
        for process in cut:
            process.kill()
            process.communicate(timeout=30)
    hosts.wait_until_empty()
