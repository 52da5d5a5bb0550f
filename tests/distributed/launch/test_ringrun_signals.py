"""Ctrl-C once and twice; no process outlives the job."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from support.processes import is_alive, stop, wait_until, wait_until_dead
from support.ringrun import PROLOGUE, Ringrun

# A child of its own, and one that leaves the rank's session.
WITH_CHILDREN = f"""
sleep = [{sys.executable!r}, "-c", "import time; time.sleep(60)"]
near = subprocess.Popen(sleep)
far = subprocess.Popen(sleep, start_new_session=True)
note(f"near{{rank}}", near.pid)
note(f"far{{rank}}", far.pid)
note(f"pid{{rank}}", os.getpid())
"""
NAMES = [f"{kind}{rank}" for kind in ("near", "far", "pid") for rank in range(2)]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_lets_ranks_clean_up(ringrun, number):
    script = """
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        note(f"pid{rank}", os.getpid())  # The signal may come as soon as it is there.
        wait_to_be_ended()
    except KeyboardInterrupt:
        print("cleaned up")
    """
    process = ringrun.start(script)
    pids = ringrun.pids("pid0", "pid1")

    process.send_signal(number)

    finished = ringrun.finish(process)
    assert finished.returncode == 128 + number
    assert sorted(finished.stdout.splitlines()) == [
        b"[0] cleaned up",
        b"[1] cleaned up",
    ]
    assert finished.verdict == f"ringrun: stopped by {number.name}"
    assert not any(map(is_alive, pids))


@pytest.mark.parametrize(("size", "options"), [(1, []), (2, []), (2, ["--raw"])])
def test_ctrl_c_says_where_the_ranks_were(ringrun, size, options):
    script = "note(f'pid{rank}', os.getpid())\nwait_to_be_ended()"
    process = ringrun.start(script, *options, size=size)
    ringrun.pids(*(f"pid{rank}" for rank in range(size)))

    process.send_signal(signal.SIGINT)

    finished = ringrun.finish(process)
    text = finished.stderr.decode()
    assert finished.returncode == 130
    assert ("Traceback" in text) == bool(options), text
    where = re.compile(r"^ringrun: interrupted: ranks? .* in .*script\.py, line ", re.M)
    assert bool(where.search(text)) != bool(options), text
    assert finished.verdict == "ringrun: stopped by SIGINT"


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGINT])
def test_what_is_ignored_at_the_start_stays_so(tmp_path, number):
    """nohup, and the & of a shell's script."""
    name = number.name.removeprefix("SIG")
    ignoring = Ringrun(tmp_path, ["sh", "-c", f'trap "" {name}; exec "$@"', "sh"])
    process = ignoring.start("note(f'pid{rank}', os.getpid())\nwait_for('go')")
    try:
        ignoring.pids("pid0", "pid1")
        process.send_signal(number)
        (tmp_path / "go").touch()

        finished = ignoring.finish(process)
    finally:
        ignoring.close()
    assert finished.returncode == 0, finished.stderr.decode()


@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGUSR2, signal.SIGXCPU])
def test_a_warning_reaches_the_ranks_and_ends_nothing(ringrun, number):
    script = f"""
    got = []
    signal.signal({int(number)}, lambda number, _frame: got.append(number))
    note(f"pid{{rank}}", os.getpid())
    wait_until(lambda: got, "the signal")
    """
    process = ringrun.start(script)
    ringrun.pids("pid0", "pid1")

    process.send_signal(number)

    finished = ringrun.finish(process)
    assert finished.returncode == 0, finished.stderr.decode()


SAVES = """
def save(*_):
    note("begun")
    wait_for("may_save")
    note("saved")
    sys.exit(0)
for number in (signal.SIGTERM, signal.SIGUSR1):
    signal.signal(number, save)
note("pid0", os.getpid())
wait_to_be_ended()
"""


def by_a_shell(ringrun, script, *options):
    """The script as the child of a rank that is a shell; ringrun, and both pids."""
    file = ringrun.directory / "script.py"
    file.write_text(PROLOGUE + script)
    command = f"{sys.executable} {file}; echo done"
    process = ringrun.start_raw("-np", "1", *options, "bash", "-c", command)
    (pid,) = ringrun.pids("pid0")
    shell = _parent(pid)
    assert Path(f"/proc/{shell}/comm").read_text() == "bash\n"
    return process, shell, pid


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
@pytest.mark.parametrize("by_agent", [False, True])
def test_what_a_shell_has_started_has_time_to_save(ringrun, number, by_agent):
    card = ["--min-np", "1", "--card", str(ringrun.directory / "card")]
    options = ["--grace-period", "50", *(card if by_agent else [])]
    process, shell, _ = by_a_shell(ringrun, SAVES, *options)

    process.send_signal(number)
    ringrun.noted("begun")
    wait_until_dead([shell])
    wait_until(lambda: not Path(f"/proc/{shell}").exists(), "its end was noticed")
    (ringrun.directory / "may_save").touch()

    finished = ringrun.finish(process)
    assert (ringrun.directory / "saved").exists(), finished.stderr.decode()
    assert finished.returncode == 128 + number
    assert finished.stdout == b""  # The shell has ended in the middle.


@pytest.mark.slow  # It is told after ten seconds.
def test_what_a_shell_has_started_and_does_not_end_is_named(ringrun):
    process, _, pid = by_a_shell(ringrun, SAVES)

    process.send_signal(signal.SIGUSR1)
    ringrun.noted("begun")
    for line in process.stderr:
        if b"waits for what it has started" in line:
            break
    (ringrun.directory / "may_save").touch()

    assert f"{pid} (python".encode() in line
    assert ringrun.finish(process).returncode == 128 + signal.SIGUSR1


def test_what_a_shell_has_started_is_killed_after_the_grace_period(ringrun):
    process, _, pid = by_a_shell(ringrun, STUBBORN, "--grace-period", "0.5")

    process.send_signal(signal.SIGTERM)

    finished = ringrun.finish(process)
    ringrun.noted("asked0")
    assert "killed the ranks that did not end: [0]" in finished.verdict
    assert not is_alive(pid)


STUBBORN = """
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, lambda *_: note(f"asked{rank}"))
note(f"pid{rank}", os.getpid())
deadline = time.monotonic() + 60
while time.monotonic() < deadline:
    time.sleep(1)
"""


def test_ranks_that_ignore_it_are_killed_after_the_grace_period(ringrun):
    process = ringrun.start(STUBBORN, "--grace-period", "0.5")
    pids = ringrun.pids("pid0", "pid1")

    process.send_signal(signal.SIGINT)

    finished = ringrun.finish(process)
    ringrun.noted("asked0")
    assert finished.returncode == 130
    assert "killed the ranks that did not end: [0, 1]" in finished.verdict
    assert not any(map(is_alive, pids))


def test_a_second_ctrl_c_kills_at_once(ringrun):
    process = ringrun.start(STUBBORN, "--grace-period", "1000")
    pids = ringrun.pids("pid0", "pid1")
    process.send_signal(signal.SIGINT)
    ringrun.noted("asked0")
    ringrun.noted("asked1")

    process.send_signal(signal.SIGINT)

    assert ringrun.finish(process).returncode == 130
    assert not any(map(is_alive, pids))


def test_children_of_ranks_end_with_the_job(ringrun):
    finished = ringrun.run(WITH_CHILDREN)

    assert finished.returncode == 0
    assert not any(map(is_alive, ringrun.pids(*NAMES)))


@pytest.mark.slow
def test_children_of_a_killed_rank_end_with_the_job(ringrun):
    script = WITH_CHILDREN + (
        "if rank == 1: os.kill(os.getpid(), signal.SIGKILL)\nwait_to_be_ended()"
    )

    finished = ringrun.run(script)

    assert finished.returncode == 137
    assert not any(map(is_alive, ringrun.pids(*NAMES)))


def test_nothing_is_left_when_ringrun_is_killed(ringrun):
    process = ringrun.start(WITH_CHILDREN + STUBBORN)
    pids = ringrun.pids(*NAMES)

    process.kill()

    wait_until_dead(pids)
    wait_until(lambda: not [*ringrun.temporary.iterdir()], "no file is left")


def test_nothing_is_left_when_the_launcher_process_is_killed(ringrun):
    process = ringrun.start(WITH_CHILDREN + STUBBORN + "\n")
    pids = ringrun.pids(*NAMES)
    parent = _parent(pids[-1])
    assert _parent(parent) == process.pid

    os.kill(parent, signal.SIGKILL)

    finished = ringrun.finish(process)
    assert finished.returncode == 137
    assert "its launcher process was killed by SIGKILL" in finished.verdict
    assert not any(map(is_alive, pids))
    assert list(ringrun.temporary.iterdir()) == []


def test_a_containers_first_process_reaps_orphans(ringrun, tmp_path):
    namespace = ["unshare", "--pid", "--fork", "--mount-proc"]
    if subprocess.run([*namespace, "true"]).returncode != 0:
        pytest.skip("needs a namespace of processes")
    first = Ringrun(tmp_path, [*namespace, "--kill-child"])
    process = first.start("note(f'pid{rank}', '')\nwait_for('go')")
    try:
        first.noted("pid0")
        (front,) = _children(process.pid)
        enter = ["nsenter", "--target", str(front), "--pid", "--mount"]
        orphan = "sleep 0 & echo left"
        subprocess.run([*enter, "sh", "-c", orphan], check=True, timeout=30)

        wait_until(lambda: len(_children(front)) == 1, "the launcher alone is left")
        (tmp_path / "go").touch()

        assert first.finish(process).returncode == 0
    finally:
        first.close()


def test_ranks_die_when_both_processes_of_ringrun_are_killed(ringrun):
    process = ringrun.start("note(f'pid{rank}', os.getpid())\nwait_to_be_ended()")
    pids = ringrun.pids("pid0", "pid1")
    parent = _parent(pids[0])
    # Stopped, neither can react to the other's death.
    stop(process.pid)

    os.kill(parent, signal.SIGKILL)
    process.kill()

    wait_until_dead(pids)


def _children(pid: int) -> list[int]:
    return [*map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())]


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[1])
