"""Processes that a job leaves, and that ringrun may not kill, as with sudo."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.processes import is_alive
from support.ringrun import Ringrun

# Root without it may signal root's own processes alone.
WITHOUT_RIGHT = ["setpriv", "--bounding-set=-kill"]

LEAVE = """
def leave(name, user):
    ready, is_ready = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.setresuid(user, user, user)
        os.write(is_ready, b".")
        time.sleep(60)
        os._exit(0)
    os.read(ready, 1)
    note(name, pid)
leave("own", 0)
leave("other", 65534)
print("done")
"""


@pytest.fixture
def ringrun(tmp_path: Path) -> Iterator[Ringrun]:
    if os.getuid() != 0 or shutil.which("setpriv") is None:
        pytest.skip("needs root, and setpriv")
    made = Ringrun(tmp_path, WITHOUT_RIGHT)
    yield made
    made.close()
    other = tmp_path / "other"
    if other.exists() and is_alive(int(other.read_text())):
        os.kill(int(other.read_text()), signal.SIGKILL)


@pytest.mark.parametrize("by_agent", [False, True])
def test_a_job_ends_well_that_leaves_what_it_may_not_kill(
    ringrun: Ringrun, by_agent: bool
) -> None:
    card = ["--min-np", "1", "--card", str(ringrun.directory / "card")]

    finished = ringrun.run(LEAVE, *(card if by_agent else []), size=1)

    said = finished.stderr.decode()
    own, other = ringrun.pids("own", "other")
    assert finished.returncode == 0, said
    assert finished.stdout == b"[0] done\n"
    assert not is_alive(own)
    assert is_alive(other)
    # The agent tells of it first, and then whose child it has become.
    told = said.count(f"processes that it may not kill are left: {other} (")
    assert told == 1 + by_agent, said


def test_it_has_no_grace_period(ringrun: Ringrun) -> None:
    process = ringrun.start(
        LEAVE + "wait_to_be_ended()", "--grace-period", "50", size=1
    )
    ringrun.noted("other")

    process.send_signal(signal.SIGTERM)

    finished = ringrun.finish(process, timeout_s=30)
    assert finished.returncode == 128 + signal.SIGTERM
    assert "may not kill" in finished.stderr.decode()
