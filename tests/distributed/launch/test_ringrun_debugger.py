"""A rank stops in Python's debugger, at the terminal of ringrun."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess

import pytest
from support.processes import is_alive, wait_until_dead
from support.ringrun import Ringrun
from support.terminal import Terminal

from ring_keras.launch.console import Console, Footer

# Without TensorFlow, which takes long to import.
JOIN = """
import numpy as np
import ring_keras as ring
from ring_keras import _native
from ring_keras.config import Config
sys.modules["tensorflow"] = None
_native.init(**Config.from_environment().init_options())
"""
IMPATIENT = {
    "RING_KERAS_STALL_TIMEOUT_S": "0.5",
    "RING_KERAS_COLLECTIVE_TIMEOUT_S": "3",
}


def start_at(
    terminal: Terminal, ringrun: Ringrun, script: str, *options: str, **env: str
) -> subprocess.Popen[bytes]:
    fd = terminal.fd
    return ringrun.start(
        JOIN + script, *options, env=env, stdin=fd, stdout=fd, stderr=fd
    )


def test_breakpoint_stops_rank_0_and_the_others_go_on(
    ringrun: Ringrun, terminal: Terminal
) -> None:
    process = start_at(
        terminal,
        ringrun,
        """
total = 7
breakpoint()
note(f"total{rank}", total)
""",
    )

    shown = terminal.read_until(rb".*\(Pdb\) ")[0]
    assert ringrun.noted("total1") == "7"
    terminal.type("p 'rank', rank\n")
    shown += terminal.read_until(rb".*\r\n\('rank', 0\)\r\n\(Pdb\) ")[0]
    terminal.type("total = 41\n")
    terminal.read_until(rb"\(Pdb\) ")
    terminal.type("c\n")

    assert ringrun.finish(process).returncode == 0
    assert ringrun.noted("total0") == "41"
    terminal.shown = shown + terminal.shown
    terminal.read_until(rb"\[1\][^\n]* \[RK826\] breakpoint\(\) stops rank 0")


def test_it_steps_through_collectives(ringrun: Ringrun, terminal: Terminal) -> None:
    process = start_at(
        terminal,
        ringrun,
        """
ring.breakpoint(rank=1)
ones = np.ones(1, np.float32)
total = _native.allreduce(ones, "sum", "x")
note(f"total{rank}", total[0])
""",
    )

    for answer in ("n", "n", "p total"):
        terminal.read_until(rb"\(Pdb\) ")
        terminal.type(f"{answer}\n")
    terminal.read_until(rb"2\.")
    terminal.type("c\n")

    assert ringrun.finish(process).returncode == 0
    assert [ringrun.noted(f"total{rank}") for rank in (0, 1)] == ["2.0", "2.0"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "transport", ["tcp", pytest.param("auto", marks=pytest.mark.slow)]
)
def test_nobody_tires_of_waiting_for_who_is_debugged(
    ringrun: Ringrun, terminal: Terminal, transport: str
) -> None:
    process = start_at(
        terminal,
        ringrun,
        """
if rank == 1:
    wait_for("asked")
breakpoint()
_native.allreduce(np.ones(1, np.float32), "sum", "x")
print("went on")
""",
        **IMPATIENT,
        RING_KERAS_TRANSPORT=transport,
    )

    terminal.read_until(rb"\(Pdb\) ")
    (ringrun.directory / "asked").touch()
    # Both limits pass meanwhile.
    terminal.type("time.sleep(5)\n")
    terminal.read_until(rb"\(Pdb\) ")
    terminal.type("c\n")

    assert ringrun.finish(process).returncode == 0
    shown = terminal.read_until(rb".*went on")[0]
    assert b"RK207" not in shown


@pytest.mark.slow
def test_whoever_waits_for_another_tires_as_ever_afterwards(
    ringrun: Ringrun, terminal: Terminal
) -> None:
    process = start_at(
        terminal,
        ringrun,
        """
breakpoint()
if rank == 1:
    _native.allreduce(np.ones(1, np.float32), "sum", "x")
wait_for("told")
""",
        **IMPATIENT,
    )

    terminal.read_until(rb"\(Pdb\) ")
    terminal.type("c\n")
    terminal.read_until(rb"RK207.*RK206")
    (ringrun.directory / "told").touch()

    assert ringrun.finish(process).returncode == 1


def test_ctrl_c_at_the_prompt_ends_the_job(
    ringrun: Ringrun, terminal: Terminal
) -> None:
    process = start_at(
        terminal, ringrun, "note(f'pid{rank}', os.getpid())\nbreakpoint()\n"
    )
    pids = ringrun.pids("pid0", "pid1")
    terminal.read_until(rb"\(Pdb\) ")
    assert is_alive(pids[0])

    process.send_signal(signal.SIGINT)

    assert ringrun.finish(process).returncode == 128 + signal.SIGINT
    wait_until_dead(pids)


@pytest.mark.parametrize("command", ["breakpoint()", "import pdb; pdb.set_trace()"])
def test_without_a_terminal_ringrun_says_where_a_debugger_asks(
    ringrun: Ringrun, command: str
) -> None:
    finished = ringrun.run(f"{command}\npass\n")

    assert finished.returncode == 1
    *_, hint, verdict = finished.stderr.decode().splitlines()
    assert hint.startswith("ringrun: a debugger found no input")
    assert "docs/debugging.md" in hint
    assert verdict == finished.verdict


def test_without_a_terminal_ours_says_so(ringrun: Ringrun) -> None:
    finished = ringrun.run(JOIN + "ring.breakpoint()\n")

    assert finished.returncode == 1
    assert "RuntimeError: [RK825] breakpoint() on rank 0" in finished.stderr.decode()


def test_a_choice_of_the_users_stands(ringrun: Ringrun, terminal: Terminal) -> None:
    process = start_at(
        terminal, ringrun, "breakpoint()\n", PYTHONBREAKPOINT="builtins.print"
    )

    assert ringrun.finish(process).returncode == 0


def test_nothing_is_drawn_below_lines_while_a_debugger_asks(terminal: Terminal) -> None:
    footer = Footer()
    console = Console(terminal.fd, footer)
    console.show_status(b"2 ranks")
    terminal.read_until(rb"2 ranks")
    asking = os.open(os.ttyname(terminal.fd), os.O_RDWR | os.O_NOCTTY)
    fcntl.flock(asking, fcntl.LOCK_EX)

    console.show_status(b"3 ranks")
    console.write([b"a line"])
    assert b"\x1b" not in terminal.read_until(rb".*a line\r\n")[0]

    os.close(asking)
    console.show_status(b"4 ranks")
    terminal.read_until(rb"4 ranks")
