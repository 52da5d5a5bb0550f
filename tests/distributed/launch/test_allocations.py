"""ringrun takes what a scheduler gives, through the scheduler's own starter."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from support.ringrun import Ringrun
from support.variants import variants

REPORT = """
import numpy as np
from ring_keras import _native
from ring_keras.config import Config
sys.modules["tensorflow"] = None
_native.init(**Config.from_environment().init_options())
print(_native.topology()[2:], _native.allreduce(np.ones(1, np.float32), name="x"))
_native.shutdown("done")
"""


@pytest.fixture
def ringrun(tmp_path: Path) -> Ringrun:
    return Ringrun(tmp_path)


def starter(directory: Path, name: str, words: int) -> str:
    """A PATH with a program that starts on this machine what follows the host.

    Args:
        directory: Where it is made, and where it notes its words before that.
        name: Of the program.
        words: How many come before the command, the host being the last.
    """
    program = directory / "bin" / name
    program.parent.mkdir()
    shift = f"shift {words}"
    program.write_text(
        f'#!/bin/sh\necho "$@" >> {directory}/started\n{shift}\nexec "$@"\n'
    )
    program.chmod(0o755)
    return f"{program.parent}:{os.environ['PATH']}"


@pytest.mark.parametrize(
    ("name", "words", "variable"),
    variants([("blaunch", 1, "LSB_MCPU_HOSTS")], [("qrsh", 2, "PE_HOSTFILE")]),
)
def test_its_hosts_and_its_starter(
    ringrun: Ringrun, tmp_path: Path, name: str, words: int, variable: str
) -> None:
    (tmp_path / "hosts").write_text(
        "nodea 2 all.q UNDEFINED\nnodeb 1 all.q UNDEFINED\n"
    )
    told = {"LSB_MCPU_HOSTS": "nodea 2 nodeb 1", "PE_HOSTFILE": str(tmp_path / "hosts")}
    env = {"PATH": starter(tmp_path, name, words), variable: told[variable]}

    # The machine may have no other address.
    options = ["--launcher-address", "127.0.0.1"]
    finished = ringrun.run(REPORT, *options, size=None, env=env)

    assert finished.returncode == 0, finished.stderr.decode()
    assert sorted(finished.stdout.decode().splitlines()) == [
        "[0] (0, 2, 0, 2) [3.]",
        "[1] (1, 2, 0, 1) [3.]",
        "[2] (0, 1, 1, 2) [3.]",
    ]
    started = (tmp_path / "started").read_text().splitlines()
    before = [line.partition(" /")[0].split() for line in started]
    inherit = ["-inherit"] * (words - 1)
    assert sorted(before) == [[*inherit, "nodea"], [*inherit, "nodeb"]]


def test_a_job_of_this_machine_alone_takes_as_many_ranks_as_asked(
    ringrun: Ringrun,
) -> None:
    env = {"LSB_MCPU_HOSTS": f"{os.uname().nodename} 1", "LSB_JOBID": "7"}

    finished = ringrun.run(REPORT, size=2, env=env)

    assert finished.returncode == 0, finished.stderr.decode()
    assert len(finished.stdout.splitlines()) == 2


def test_more_ranks_than_slots(ringrun: Ringrun) -> None:
    env = {"LSB_MCPU_HOSTS": "nodea 2 nodeb 1"}

    finished = ringrun.run(REPORT, size=4, env=env)

    assert finished.returncode == 2
    assert (
        "LSB_MCPU_HOSTS: 4 ranks need as many slots, and there are 3: nodea:2, nodeb:1"
        in finished.stderr.decode()
    )


def test_under_mpirun_it_is_one_job_of_many(ringrun: Ringrun) -> None:
    env = {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "4"}

    finished = ringrun.run(REPORT, size=2, env=env)

    # Its ranks are told who they are by ringrun, not by mpirun.
    assert sorted(finished.stdout.decode().splitlines()) == [
        "[0] (0, 2, 0, 1) [2.]",
        "[1] (1, 2, 0, 1) [2.]",
    ]
    said = "ringrun: Open MPI started 4 of this ringrun; each runs a job of its own"
    assert said in finished.stderr.decode()
    finished = ringrun.run(REPORT, size=None, env=env | {"LSB_MCPU_HOSTS": "a 1"})
    assert finished.returncode == 2
    assert "Open MPI started 4 of this ringrun; each would take" in str(finished.stderr)
