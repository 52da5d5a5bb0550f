"""`ring_keras.run` on several hosts, which share the directory it uses."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.ssh_hosts import SshHosts

pytestmark = pytest.mark.hosts

SCRIPT = """
import os, socket, sys
import ring_keras as ring

def work(word):
    if word == "fail" and os.environ["RING_KERAS_RANK"] == "1":
        raise ValueError(word)
    return f"{word} {os.environ['RING_KERAS_RANK']} {socket.gethostname()}"

options = ["-H", "node0:1,node1:1", "--ssh-args", sys.argv[1]]
print(ring.run(work, ["from"], np=2, options=options))
try:
    ring.run(work, ["fail"], np=2, options=options)
except ring.RankFailedError as error:
    print(error)
"""


def test_results_and_errors_come_from_other_hosts(
    hosts: SshHosts, tmp_path: Path
) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)

    ended = subprocess.run(
        hosts.on(0, sys.executable, str(script), hosts.ssh_args),
        env=os.environ | {"TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )

    assert ended.returncode == 0, ended.stderr
    results, error = ended.stdout.split("\n", 1)
    assert results == "['from 0 node0', 'from 1 node1']"
    assert error.startswith("rank 1 (host node1, pid ")
    assert "raised ValueError: fail" in error
    assert [path.name for path in tmp_path.iterdir()] == ["script.py"]
