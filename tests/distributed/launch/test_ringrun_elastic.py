"""Jobs whose ranks come and go. The engine and ringrun alone: no TensorFlow."""

from __future__ import annotations

import os
import random
import resource
import signal
import subprocess
import time
from pathlib import Path

import pytest
from support.elastic_ranks import (
    GO_ON_UNTIL_2,
    GO_ON_UNTIL_ENOUGH,
    LEAVE_IN_TURN,
    PROLOGUE,
    ended,
)
from support.processes import stop, wait_until, wait_until_dead
from support.ringrun import Finished, Ringrun


def start(
    ringrun: Ringrun, script: str, *options: str, size: int = 2
) -> subprocess.Popen[bytes]:
    """Starts an elastic job of such ranks."""
    return ringrun.start(PROLOGUE + script, *options, size=size)


def finish(ringrun: Ringrun, process: subprocess.Popen[bytes], code: int) -> Finished:
    """How it ended, with that code."""
    finished = ringrun.finish(process)
    assert finished.returncode == code, finished.stderr.decode()
    return finished


def test_survivors_keep_their_process_and_their_order(ringrun: Ringrun) -> None:
    job = start(ringrun, GO_ON_UNTIL_2, "--min-np", "2", size=4)
    pids = ringrun.pids("pid.0", "pid.1", "pid.2", "pid.3")

    os.kill(pids[0], signal.SIGKILL)
    os.kill(pids[2], signal.SIGKILL)

    finish(ringrun, job, 0)
    assert ended(ringrun, 1, 3) == {1: (pids[1], [1, 3]), 3: (pids[3], [1, 3])}


def test_a_rank_that_dies_while_a_generation_forms_is_not_waited_for(
    ringrun: Ringrun,
) -> None:
    script = """
if rank == 2:
    launcher_of(config).join()  # All are told that it is there.
    os.kill(os.getpid(), signal.SIGKILL)
join()
end()
"""
    finish(ringrun, start(ringrun, script, "--min-np", "2", size=3), 0)

    assert [met for _, met in ended(ringrun, 0, 1).values()] == [[0, 1], [0, 1]]


def test_too_few_end_with_a_code_of_its_own(ringrun: Ringrun) -> None:
    job = start(ringrun, GO_ON_UNTIL_2.replace("!= 2", "> 0"), "--min-np", "2")
    pids = ringrun.pids("pid.0", "pid.1")

    os.kill(pids[1], signal.SIGKILL)

    finished = finish(ringrun, job, 75)
    assert "fewer than --min-np 2 ranks are left (1), and no others" in finished.verdict
    assert f"pid {pids[1]}) was killed by SIGKILL" in finished.verdict
    assert b"NoGenerationError: the job ends" in finished.stderr


@pytest.mark.parametrize(
    ("least", "code", "said"),
    [("1", 3, "[RK801] rank 1 ("), ("2", 75, "no others will come. process 1 (rank 1")],
)
def test_the_first_that_left_is_the_cause(
    ringrun: Ringrun, least: str, code: int, said: str
) -> None:
    job = start(ringrun, LEAVE_IN_TURN, "--min-np", least)

    verdict = finish(ringrun, job, code).verdict
    assert said in verdict
    assert ") exited with code 3" in verdict


def test_all_killed_at_once_end_as_in_any_job(ringrun: Ringrun) -> None:
    job = start(ringrun, GO_ON_UNTIL_2.replace("!= 2", "> 0"), "--min-np", "1")
    pids = ringrun.pids("pid.0", "pid.1")
    for pid in pids:
        stop(pid)  # So that neither gives the other up.
    for pid in pids:
        os.kill(pid, signal.SIGKILL)

    assert "was killed by SIGKILL" in finish(ringrun, job, 137).verdict


_REPLACED = """
_, members = join()
note(f"pid.{rank}", os.getpid())
generations = [_native.generation()]
if rank < 2:
    meet_until_lost()
    _, members = join()
    generations.append(_native.generation())
    if members == 1:
        wait_until(launcher_of(config).others_wait, "a replacement")
        _native.shutdown("others wait")
        _, members = join()
        generations.append(_native.generation())
assert members == 2
# Graphs of the one would be taken for those of the other.
assert len(set(generations)) == len(generations), generations
end()
"""


@pytest.mark.parametrize("least", ["1", pytest.param("2", marks=pytest.mark.slow)])
def test_a_lost_rank_is_replaced(ringrun: Ringrun, least: str) -> None:
    options = ["--min-np", least, "--max-np", "2"]
    options += ["--blacklist-cooldown-range", "0", "0"]
    job = start(ringrun, _REPLACED, *options)
    pids = ringrun.pids("pid.0", "pid.1")

    os.kill(pids[0], signal.SIGKILL)

    finish(ringrun, job, 0)
    found = ended(ringrun, 1, 2)
    assert found[1] == (pids[1], [1, 2])
    assert found[2][1] == [1, 2]


def test_who_has_not_taken_the_state_does_not_go_on_alone(ringrun: Ringrun) -> None:
    script = """
launcher = launcher_of(config)
_, members = join()
launcher.note_joined()
if rank == 2:
    note("pid.2", os.getpid())
    meet_until_lost()
    join()
note(f"pid.{rank}", os.getpid())
meet_until_lost()
while join()[1] == 1:
    launcher.note_joined()
    wait_until(launcher.others_wait, "a replacement")
    _native.shutdown("others wait")
meet_until_lost()
"""
    options = ["--min-np", "1", "--max-np", "2"]
    job = start(ringrun, script, *options, "--blacklist-cooldown-range", "0", "0")
    first, second = ringrun.pids("pid.0", "pid.1")
    os.kill(first, signal.SIGKILL)
    ringrun.pids("pid.2")

    os.kill(second, signal.SIGKILL)

    finished = finish(ringrun, job, 128 + signal.SIGKILL)
    assert b"that had the state of the job are lost" in finished.stderr
    assert f"pid {second}) was killed by SIGKILL" in finished.verdict


def test_replacements_that_never_join_are_the_last(ringrun: Ringrun) -> None:
    script = """
note(f"born.{rank}")
if rank > 0:
    sys.exit(3)
wait_for("born.2")  # The job may begin while they end.
join()
wait_for("go")
end()
"""
    options = ["--max-np", "2", "--blacklist-cooldown-range", "0", "0"]
    said = ringrun.directory / "stderr"
    with said.open("wb") as file:
        job = ringrun.start(PROLOGUE + script, *options, size=1, stderr=file.fileno())
    last = b"elastic: no more processes are started: 3 in a row have ended before they"
    wait_until(lambda: last in said.read_bytes(), "there are no more")
    (ringrun.directory / "go").touch()

    assert job.wait(60) == 0, said.read_text()
    assert said.read_bytes().count(last) == 1
    assert not (ringrun.directory / "born.4").exists()


# Such as a handler of SIGTERM that calls `sys.exit(0)`.
_LEAVES = """
join()
if rank == 0:
    _native.shutdown("it leaves")
    sys.exit(0)
meet_until_lost()
join()
end()
"""


def test_who_leaves_early_with_code_0_is_lost(ringrun: Ringrun) -> None:
    finished = finish(ringrun, start(ringrun, _LEAVES, "--min-np", "1", size=3), 0)

    assert [met for _, met in ended(ringrun, 1, 2).values()] == [[1, 2], [1, 2]]
    assert b"exited with code 0 while the others were not done" in finished.stderr


def test_who_leaves_early_with_code_0_may_be_one_too_many(ringrun: Ringrun) -> None:
    finished = finish(ringrun, start(ringrun, _LEAVES, "--min-np", "2"), 75)

    assert "exited with code 0 while the others were not done" in finished.verdict


def test_who_is_done_may_end_before_the_others(ringrun: Ringrun) -> None:
    """It is not replaced meanwhile."""
    script = """
join()
meet()
_native.shutdown("it is done")
if rank == 0:
    note("pid", os.getpid())
else:
    wait_for("go")
"""
    options = ["--max-np", "2", "--blacklist-cooldown-range", "0", "0"]
    job = start(ringrun, script, *options)
    wait_until_dead(ringrun.pids("pid"))
    (ringrun.directory / "go").touch()

    finished = finish(ringrun, job, 0)
    assert b"elastic:" not in finished.stderr


def test_a_rank_that_fails_counts_as_lost(ringrun: Ringrun) -> None:
    script = """
join()
if rank == 0:
    _native.shutdown("it failed")
    sys.exit(3)
meet_until_lost()
join()
end()
"""
    finished = finish(ringrun, start(ringrun, script, "--min-np", "1"), 0)

    assert ended(ringrun, 1)[1][1] == [1]
    assert b"exited with code 3" in finished.stderr


def test_who_does_not_come_in_time_is_killed(ringrun: Ringrun) -> None:
    script = """
note(f"pid.{rank}", os.getpid())
if rank == 1:
    wait_to_be_ended()
join()
end()
"""
    options = ["--min-np", "1", "--elastic-timeout", "0.5"]
    finished = finish(ringrun, start(ringrun, script, *options), 0)

    assert ended(ringrun, 0)[0][1] == [0]
    assert b"it has not joined within --elastic-timeout 0.5 s" in finished.stderr


def test_more_changes_than_allowed_end_the_job(ringrun: Ringrun) -> None:
    options = ["--min-np", "1", "--reset-limit", "0"]
    job = start(ringrun, GO_ON_UNTIL_2.replace("!= 2", "> 0"), *options)
    (pid,) = ringrun.pids("pid.1")

    os.kill(pid, signal.SIGKILL)

    assert "more than --reset-limit 0 times" in finish(ringrun, job, 75).verdict


def test_ranks_that_only_meet_anew_have_not_changed(ringrun: Ringrun) -> None:
    script = """
for _ in range(3):
    join()
    assert meet() == [0, 1]
    _native.shutdown("it meets anew")
join()
end()
"""
    options = ["--min-np", "1", "--reset-limit", "0"]
    finish(ringrun, start(ringrun, script, *options), 0)

    assert [met for _, met in ended(ringrun, 0, 1).values()] == [[0, 1], [0, 1]]


def test_a_process_that_cannot_be_started_ends_nobody(ringrun: Ringrun) -> None:
    options = ["--min-np", "1", "--max-np", "2"]
    options += ["--blacklist-cooldown-range", "0.1", "0.1"]
    said, note = ringrun.directory / "stderr", ringrun.directory / "met.0"
    with said.open("wb") as file:
        script = PROLOGUE + GO_ON_UNTIL_ENOUGH
        job = ringrun.start(script, *options, stderr=file.fileno())
    _, lost = ringrun.pids("pid.0", "pid.1")
    wait_until(lambda: note.exists() and note.read_text() == "0 1", "they have met")
    # ringrun waits for it, and ends what it leaves behind.
    (launcher,) = Path(f"/proc/{job.pid}/task/{job.pid}/children").read_text().split()
    limits = resource.prlimit(int(launcher), resource.RLIMIT_NOFILE)

    resource.prlimit(int(launcher), resource.RLIMIT_NOFILE, (3, limits[1]))
    os.kill(lost, signal.SIGKILL)
    failed = b"elastic: cannot start a process: [Errno 24]"
    wait_until(lambda: failed in said.read_bytes(), "one could not be started")
    wait_until(lambda: note.read_text() == "0", "rank 0 goes on alone")
    resource.prlimit(int(launcher), resource.RLIMIT_NOFILE, limits)
    wait_until(lambda: note.read_text() == "0 2", "another one is there")
    (ringrun.directory / "enough").touch()

    assert job.wait(60) == 0, said.read_text()


def test_a_replacement_without_files_costs_these_alone(ringrun: Ringrun) -> None:
    directory = ringrun.directory / "out"
    options = ["--min-np", "1", "--max-np", "2", "--output-dir", str(directory)]
    options += ["--blacklist-cooldown-range", "0.1", "0.1"]
    job = start(ringrun, GO_ON_UNTIL_ENOUGH, *options)
    (lost,) = ringrun.pids("pid.1")
    note = ringrun.directory / "met.0"
    wait_until(lambda: note.exists() and note.read_text() == "0 1", "they have met")

    # In place of its directory.
    (directory / "rank.2").write_text("")
    os.kill(lost, signal.SIGKILL)
    wait_until(lambda: note.read_text() == "0 2", "another one is there")
    (ringrun.directory / "enough").touch()

    said = finish(ringrun, job, 0).stderr
    assert said.count(b"what rank 2 prints is shown here alone") == 2


def test_who_is_done_keeps_nobody_waiting_for_a_third(ringrun: Ringrun) -> None:
    script = """
join()
meet()
if rank == 1:
    wait_to_be_ended()  # It hangs.
if rank == 2:
    _native.shutdown("it is done")
    sys.exit(0)
meet_until_lost()
join()
end()
"""
    options = ["--min-np", "1", "--elastic-timeout", "1"]
    finished = finish(ringrun, start(ringrun, script, *options, size=3), 0)

    assert ended(ringrun, 0)[0][1] == [0]
    assert b"it has not joined within --elastic-timeout 1 s" in finished.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_ranks_that_wait_for_a_generation(
    ringrun: Ringrun, number: signal.Signals
) -> None:
    script = """
note(f"pid.{rank}", os.getpid())
if rank == 1:
    wait_to_be_ended()
join()
"""
    job = start(ringrun, script, "--min-np", "1")
    pids = ringrun.pids("pid.0", "pid.1")

    job.send_signal(number)

    finish(ringrun, job, 128 + number)
    for pid in pids:
        wait_until(lambda pid=pid: not Path("/proc", str(pid)).exists(), f"{pid} ended")


@pytest.mark.slow  # The store's patience with one that is silent.
def test_a_stopped_rank_is_given_up(ringrun: Ringrun) -> None:
    script = """
join()
note(f"pid.{rank}", os.getpid())
meet_until_lost()
join()
end()
"""
    job = start(ringrun, script, "--min-np", "1")
    pids = ringrun.pids("pid.0", "pid.1")

    os.kill(pids[0], signal.SIGSTOP)

    finished = finish(ringrun, job, 0)
    assert ended(ringrun, 1) == {1: (pids[1], [1])}
    assert b"the others have lost it" in finished.stderr


def three_met(ringrun: Ringrun, survivor: int, newest: int) -> list[int]:
    """With whom a survivor has met, once they are three and no older than that."""
    note = ringrun.directory / f"met.{survivor}"
    met: list[int] = []

    def are_three() -> bool:
        met[:] = map(int, note.read_text().split()) if note.exists() else []
        return len(met) == 3 and max(met) >= newest

    wait_until(are_three, f"{survivor} and two others met, {newest} at last")
    return met


@pytest.mark.slow
def test_a_script_may_be_where_nothing_may_be_executed(tmp_path: Path) -> None:
    """As /tmp is on many a machine, where engines put theirs."""
    if subprocess.run(["unshare", "--mount", "true"]).returncode != 0:
        pytest.skip("needs a namespace of mounts")
    place = tmp_path / "noexec"
    place.mkdir()
    shell = f"""
mount -t tmpfs -o noexec none {place} &&
printf '#!/bin/sh\necho localhost slots=1\n' >{place}/hosts &&
chmod 700 {place}/hosts && exec "$@"
"""
    ringrun = Ringrun(tmp_path, ["unshare", "--mount", "sh", "-c", shell, "sh"])
    options = ["--host-discovery-script", str(place / "hosts")]
    command = [*options, "--min-np", "1", "--max-np", "1", "echo", "hi"]

    finished = ringrun.finish(ringrun.start_raw(*command))

    assert finished.stdout == b"[0] hi\n", finished.stderr.decode()


@pytest.mark.parametrize(
    ("number", "held_back"),
    [(signal.SIGINT, False), (signal.SIGTERM, True)],
    ids=["SIGINT", "SIGTERM, held back"],
)
def test_what_a_script_has_started_ends_with_it(
    ringrun: Ringrun, number: signal.Signals, held_back: bool
) -> None:
    script = ringrun.directory / "hosts"
    pid = ringrun.directory / "pid"
    script.write_text(
        f"#!/bin/sh\nsleep 600 &\necho $! >{pid}.new\nmv {pid}.new {pid}\nwait\n"
    )
    script.chmod(0o700)
    options = ["--host-discovery-script", str(script), "--min-np", "1", "--max-np", "1"]
    # An engine's process has it so while it starts ringrun.
    how = signal.SIG_BLOCK if held_back else signal.SIG_UNBLOCK
    earlier = signal.pthread_sigmask(how, [number])
    try:
        process = ringrun.start_raw(*options, "true")
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, earlier)
    started = ringrun.pids("pid")

    process.send_signal(number)

    assert ringrun.finish(process).returncode == 128 + number
    wait_until_dead(started)


def test_the_newest_ranks_leave_a_host_that_loses_slots(ringrun: Ringrun) -> None:
    def await_met(number: int, members: str) -> None:
        note = ringrun.directory / f"met.{number}"
        wait_until(lambda: note.exists() and note.read_text() == members, members, 60)

    slots, script = ringrun.directory / "slots", ringrun.directory / "hosts"
    slots.write_text("3")
    script.write_text(f"#!/bin/sh\necho {os.uname().nodename}:$(cat {slots})\n")
    script.chmod(0o700)
    options = ["--host-discovery-script", str(script), "--min-np", "1", "--max-np", "3"]
    options += ["--launcher-address", "127.0.0.1"]
    job = start(ringrun, GO_ON_UNTIL_ENOUGH, *options, size=3)
    await_met(0, "0 1 2")

    slots.write_text("1")
    await_met(0, "0")
    wait_until_dead(ringrun.pids("pid.1", "pid.2"))
    slots.write_text("2")
    await_met(0, "0 3")
    (ringrun.directory / "enough").touch()

    said = finish(ringrun, job, 0).stderr.decode()
    assert said.count("now has slots for 1: as many of its ranks stay") == 1, said


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.slow
def test_any_rank_may_be_killed_at_any_time(ringrun: Ringrun, seed: int) -> None:
    options = ["--min-np", "1", "--max-np", "3"]
    options += ["--blacklist-cooldown-range", "0", "0"]
    job = start(ringrun, GO_ON_UNTIL_ENOUGH, *options, size=3)
    random_one = random.Random(seed)
    members, newest = three_met(ringrun, 0, 2), 2
    for _ in range(10):
        time.sleep(random_one.random() / 5)
        lost = random_one.sample(members, random_one.choice([1, 2]))
        for number in lost:
            os.kill(int(ringrun.noted(f"pid.{number}")), signal.SIGKILL)
        survivors = [number for number in members if number not in lost]
        newest += len(lost)
        members = three_met(ringrun, survivors[0], newest)
        assert members[: len(survivors)] == survivors
    (ringrun.directory / "enough").touch()

    finish(ringrun, job, 0)
    assert [met for _, met in ended(ringrun, *members).values()] == [members] * 3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--min-np", "3"], "--min-np must be from 1 to -np 2, not 3"),
        (["--max-np", "1"], "--max-np must be at least -np 2, not 1"),
        (["--reset-limit", "1"], "--reset-limit is for elastic jobs"),
        (["--min-np", "1", "--bind-to", "cores"], "--bind-to does not work with"),
        (["--min-np", "1", "--timeline", "a.json"], "--timeline, or RING_KERAS_TIM"),
        (["--min-np", "1", "-x", "RING_KERAS_TIMELINE=a"], "--timeline, or RING_KER"),
        (["--host-discovery-script", "x"], "give --min-np and --max-np, too"),
        (
            ["--host-discovery-script", "x", "--min-np", "1", "--max-np", "2"],
            "x: No such file or directory",
        ),
        (
            ["-H", "a:1,b:1", "--host-discovery-script", "x"],
            "the script names the hosts",
        ),
        (["--slots-per-host", "2"], "is for elastic jobs"),
        (
            ["--min-np", "1", "--blacklist-cooldown-range", "1", "2"],
            "without --max-np they are not",
        ),
    ],
)
def test_what_cannot_be_is_said(
    options: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    from ring_keras.launch.cli import main

    with pytest.raises(SystemExit) as left:
        main(["-np", "2", *options, "true"])

    assert left.value.code == 2
    assert message in " ".join(capsys.readouterr().err.split())
