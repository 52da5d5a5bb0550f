"""Each command of docs/hosts.md, where it says that it is to be run."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from pathlib import Path

import pytest
from support.ssh_hosts import SshHosts

pytestmark = pytest.mark.hosts

PAGE = Path(__file__).parents[2] / "docs" / "hosts.md"

TRAIN = """
import numpy as np
from ring_keras import _native
from ring_keras.config import Config
_native.init(**Config.from_environment().init_options())
print("sum", _native.allreduce(np.ones(1, np.float32), name="x")[0])
_native.shutdown("done")
"""


def blocks() -> list[list[tuple[int, str]]]:
    """The page's commands, block after block: host and command."""
    found = []
    for block in re.findall(r"^ *```\n(.*?)^ *```", PAGE.read_text(), re.S | re.M):
        commands = re.findall(r"^ *node(\d)\$ (.*)$", block, re.M)
        if commands:
            found.append([(int(host), command) for host, command in commands])
    return found


def test_every_command_works(hosts: SshHosts, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAIN)
    text = PAGE.read_text()
    (hostfile,) = re.findall(r"^```\n(# hosts\n.*?)^```", text, re.S | re.M)
    (tmp_path / "hosts").write_text(hostfile)
    path = hosts.search_path(tmp_path / "bin")
    sums = []
    for block in blocks():
        started = []
        for host, command in block:
            started.append(
                subprocess.Popen(
                    hosts.on(
                        host, "sh", "-c", f"cd {shlex.quote(str(tmp_path))}; {command}"
                    ),
                    env=os.environ | {"PATH": path},
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    stdin=subprocess.DEVNULL,
                    text=True,
                )
            )
        waiting = [
            process
            for process, (_, command) in zip(started, block, strict=True)
            if not command.endswith("&")
        ]
        for process in waiting:
            stdout, stderr = process.communicate(timeout=100)
            assert process.returncode == 0, (block, stdout, stderr)
            sums.append(re.findall(r"sum ([\d.]+)", stdout))
        for host in (0, 1):  # What runs until it is told to end.
            for name in ("ring_keras.rendezvous", "listening_agent"):
                for pid in hosts.find(host, name)[:1]:
                    os.kill(pid, 15)
        hosts.wait_until_empty()
        for process in started:
            process.communicate(timeout=30)
    four, two = ["4.0"] * 4, ["4.0"] * 2
    assert sums == [[], [], four, four, [], two, two, four, ["2.0"], ["2.0"]]
