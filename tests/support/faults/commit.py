"""Has a fault come, in this process."""

from __future__ import annotations

import ctypes
import os
import random
import signal
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

from ring_keras import _native
from support.faults.cases import (
    AGENT_KILLED,
    CUT_OFF,
    INHERITED,
    LAUNCHER_KILLED,
    LINK_FAULTS,
    OUT_OF_MEMORY,
    STORE_KILLED,
    Case,
)
from support.faults.faulty_link import tell_the_link

# A rank that cannot end by itself is killed then.
HELD_S = 20.0
# Names the control group in which there is little memory left.
MEMORY_GROUP = "memory_group"
# Names the process that is the store.
STORE_PID = "store_pid"
# The command that has a fault of a host come.
HOST_FAULT = "host_fault"


def commit(case: Case, directory: str) -> None:
    """Has it come now, unless it has."""
    if case.fault in LINK_FAULTS:
        tell_the_link()
        return
    told = Path(directory, "fault")
    if told.exists():
        return
    told.write_text(str(time.monotonic()))
    pid = os.getpid()
    if case.fault == STORE_KILLED:
        os.kill(int(Path(directory, STORE_PID).read_text()), signal.SIGKILL)
    elif case.fault in (LAUNCHER_KILLED, AGENT_KILLED):
        os.kill(os.getppid(), signal.SIGKILL)
    elif case.fault in (INHERITED, CUT_OFF):
        subprocess.run(Path(directory, HOST_FAULT).read_text().split(), check=True)
    elif case.fault == OUT_OF_MEMORY:
        group = Path(directory, MEMORY_GROUP).read_text()
        Path(group, "cgroup.procs").write_text(str(pid))
        eaten = []
        while True:
            eaten.append(bytes([1]) * 2**20)
    elif case.fault.startswith("SIGSTOP"):
        lasts = case.fault == "SIGSTOP for a second"
        number, seconds = ("CONT", 1) if lasts else ("KILL", HELD_S)
        subprocess.Popen(["sh", "-c", f"sleep {seconds}; kill -{number} {pid}"])
        os.kill(pid, signal.SIGSTOP)
    elif case.fault.startswith("SIG"):
        os.kill(pid, signal.Signals[case.fault])
    elif case.fault.startswith("exit"):
        os._exit(int(case.fault.split()[1]))
    elif case.fault == "raises":
        raise ValueError("bad batch 17")
    elif case.fault == "keeps Python's lock":
        subprocess.Popen(["sh", "-c", f"sleep {HELD_S}; kill -KILL {pid}"])
        ctypes.PyDLL(None).sleep(600)
    else:
        threading.Thread(target=lambda: 1 // 0).start()


def commit_beside(case: Case, directory: str) -> None:
    """Has it come in a thread, while this one goes on."""
    longest_s = 0.02 if case.place == "in init" else 0.005
    delay = random.Random(str(case)).uniform(0, longest_s)
    threading.Timer(delay, commit, (case, directory)).start()


def commit_in_init(case: Case, directory: str) -> None:
    """Has it come while this process joins, after all that comes before."""
    join = _native.init

    def commit_and_join(**options: Any) -> None:
        commit_beside(case, directory)
        join(**options)

    _native.init = commit_and_join
