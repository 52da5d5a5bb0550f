"""Exit codes, root causes, and who is stopped."""

import re
import socket
import subprocess
import sys

import pytest
from support.ringrun import Finished, Ringrun


@pytest.mark.parametrize(
    ("failure", "code", "how"),
    [
        ("sys.exit(3)", 3, "exited with code 3"),
        ("raise RuntimeError('no')", 1, "exited with code 1"),
        ("os.abort()", 134, "was killed by SIGABRT"),
    ],
)
def test_the_failing_rank_is_named_and_gives_the_exit_code(ringrun, failure, code, how):
    script = f"""
    if rank == 1:
        note("pid1", os.getpid())
        {failure}
    wait_for_the_end_of("pid1")
    sys.exit(1)
    """

    finished = ringrun.run(script, size=3)

    assert finished.returncode == code
    (pid,) = ringrun.pids("pid1")
    who = f"rank 1 (host {socket.gethostname()}, pid {pid})"
    assert re.fullmatch(
        r"ringrun: \[RK80[12]\] "
        + re.escape(f"{who} {how} after ")
        + r"\d+\.\d s; the other ranks have ended too",
        finished.verdict,
    )


def test_a_rank_that_sigkill_ended_is_told_of_with_its_memory(ringrun):
    finished = ringrun.run("os.kill(os.getpid(), signal.SIGKILL)", size=1)

    assert finished.returncode == 137
    assert re.search(
        # Perhaps, if the OOM killer has been at work somewhere on this machine.
        r"was killed by SIGKILL after [\d.]+ s: (not by|perhaps) the kernel's OOM "
        r"killer.*; its peak memory was \d+ MiB$",
        finished.verdict,
    ), finished.verdict


@pytest.mark.slow
def test_ranks_that_do_not_notice_are_stopped(ringrun):
    finished = ringrun.run("sys.exit(3) if rank == 1 else wait_to_be_ended()")

    assert finished.returncode == 3
    assert re.search(r"rank 1 .*; the other ranks were stopped$", finished.verdict)


def test_the_first_of_two_failures_counts(ringrun):
    script = """
    if rank == 2:
        note("pid2", os.getpid())
        sys.exit(5)
    wait_for_the_end_of("pid2")
    sys.exit(6)
    """

    finished = ringrun.run(script, size=3)

    assert finished.returncode == 5
    assert "rank 2 " in finished.verdict
    assert finished.verdict.endswith("; the other ranks have ended too")


def test_others_may_notice_and_say_why_before_they_are_stopped(ringrun):
    script = """
    if rank == 1:
        note("pid1", os.getpid())
        sys.exit(4)
    wait_for_the_end_of("pid1")
    print("rank 1 is gone, says rank", rank)
    sys.exit(1)
    """

    finished = ringrun.run(script)

    assert finished.stdout == b"[0] rank 1 is gone, says rank 0\n"
    assert finished.returncode == 4
    assert finished.verdict.endswith("; the other ranks have ended too")


def test_a_rank_that_ends_well_early_stops_nobody(ringrun):
    script = """
    if rank == 0:
        note("pid0", os.getpid())
        sys.exit(0)
    wait_for_the_end_of("pid0")
    print("went on")
    """

    finished = ringrun.run(script)

    assert finished.returncode == 0
    assert finished.stdout == b"[1] went on\n"
    assert finished.verdict == ""


def test_a_rank_that_ignores_sigterm_is_killed_after_the_grace_period(ringrun):
    script = """
    signal.signal(signal.SIGTERM, lambda *_: note("asked"))
    note(f"ready{rank}")
    if rank == 1:
        wait_for("ready0")
        sys.exit(7)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        time.sleep(1)
    note("own_end")
    """

    finished = ringrun.run(script, "--grace-period", "0.5")

    assert finished.returncode == 7
    ringrun.noted("asked")
    assert not (ringrun.directory / "own_end").exists()


_JOIN = """
sys.modules["tensorflow"] = None
from ring_keras.config import Config
from ring_keras.lifecycle.elastic_launcher import launcher_of
launcher_of(Config.from_environment()).join()
"""


def test_a_host_without_loopback_is_told_at_once(tmp_path):
    """As a namespace of networks begins."""
    if subprocess.run(["unshare", "--net", "true"]).returncode != 0:
        pytest.skip("needs a namespace of networks")
    alone = Ringrun(tmp_path, ["unshare", "--net"])

    finished = alone.finish(alone.start_raw("-np", "2", "sleep", "600"))

    assert finished.returncode == 1
    assert "[RK810] cannot start the ranks: this host does not" in finished.verdict
    assert "`ip link set lo up`" in finished.verdict


@pytest.mark.parametrize(
    ("options", "code", "names"), [([], 1, "RK810"), (["--min-np", "1"], 75, "RK806")]
)
def test_a_store_that_cannot_be_is_a_line(tmp_path, options, code, names):
    """Without TensorFlow, which errors would else bring, in many seconds."""
    few = Ringrun(tmp_path, ["sh", "-c", 'ulimit -n 300 && exec "$@"', "sh"])
    try:
        finished = few.finish(few.start(_JOIN, *options))
    finally:
        few.close()

    assert finished.returncode == code
    assert f"[{names}] " in finished.verdict
    assert "[RK130] " in finished.verdict
    assert b"ring_keras/launch/" not in finished.stderr, finished.stderr.decode()


def run_python(ringrun: Ringrun, script: str, *options: str, size: int = 2) -> Finished:
    file = ringrun.directory / "train.py"
    file.write_text(
        f"import os, sys\nrank = int(os.environ['RING_KERAS_RANK'])\n{script}"
    )
    command = ["-np", str(size), *options, sys.executable, str(file)]
    return ringrun.finish(ringrun.start_raw(*command))


@pytest.mark.parametrize("options", [[], ["--min-np", "1"]])
def test_ranks_that_never_join_are_told_of(ringrun, options):
    """Each has trained for itself."""
    finished = run_python(ringrun, "print('trained')", *options)

    assert finished.returncode == 0
    assert finished.stderr.count(b"\n") == 1
    assert "[RK817] none of the 2 ranks has joined the job" in finished.verdict


@pytest.mark.parametrize(
    ("size", "script"),
    [
        (1, ""),
        (2, "sys.exit(rank)"),  # The verdict says enough.
        (
            2,
            "from ring_keras import _native\n"
            "from ring_keras.config import Config\n"
            "_native.init(**Config.from_environment().init_options())\n"
            "_native.shutdown('done')",
        ),
    ],
)
def test_others_are_not_told_of(ringrun, size, script):
    assert b"RK817" not in run_python(ringrun, script, size=size).stderr


def test_a_program_is_not_told_of(ringrun):
    finished = ringrun.finish(ringrun.start_raw("-np", "2", "hostname"))

    assert finished.stderr == b""


def test_a_script_without_its_interpreter(ringrun, tmp_path):
    script = tmp_path / "train.py"
    script.write_text("print('started')\n")

    finished = ringrun.finish(ringrun.start_raw("-np", "2", str(script), "--fast"))

    assert finished.returncode == 2
    assert f"as in python {script} --fast" in finished.stderr.decode()
    assert finished.stdout == b""


def test_a_command_that_cannot_be_executed(ringrun, tmp_path):
    program = tmp_path / "program"
    program.write_text("#!/no/such/interpreter\n")
    program.chmod(0o755)

    finished = ringrun.finish(ringrun.start_raw("-np", "1", str(program)))

    assert finished.returncode == 127
    assert b"cannot run" in finished.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ([], 2, "-np N, or -H, is required"),
        (["-np", "2"], 2, "a command is required"),
        (["-np", "0", "true"], 2, "an integer of at least 1, or auto, not 0"),
        (["-np", "two", "true"], 2, "an integer of at least 1, or auto, not two"),
        (["-np", "1", "no-such-program"], 127, "no-such-program: no such command"),
        (["-np", "1", "--grace-period", "-1", "true"], 2, "number of seconds, not -1"),
        (["-np", "1", "-x", "=1", "true"], 2, "must be NAME=VALUE or NAME, not =1"),
        (["-np", "1", "-x", "RING_KERAS_RANK=1", "true"], 2, "for ringrun itself"),
        (["-np", "1", "--transport", "x", "true"], 2, "must be auto, tcp, mpi, or"),
        (["-np", "1", "--start-timeout", "x", "true"], 2, "RING_KERAS_INIT_TIMEOUT_S"),
        (["-np", "1", "--output-dir", "/dev/null/x", "true"], 2, "Not a directory"),
        (["-np", "1", "--no-such-option", "true"], 2, "--no-such-option"),
    ],
)
def test_bad_arguments_are_refused_by_name(ringrun, arguments, code, message):
    finished = ringrun.finish(ringrun.start_raw(*arguments))

    assert finished.returncode == code
    assert message in finished.stderr.decode()
    assert b"Traceback" not in finished.stderr


def test_a_bad_inherited_variable_is_refused_before_anything_starts(ringrun):
    finished = ringrun.run(
        'note("started")', env={"RING_KERAS_TCP_STREAMS": "many"}, size=1
    )

    assert finished.returncode == 2
    assert b"RING_KERAS_TCP_STREAMS='many'" in finished.stderr
    assert not (ringrun.directory / "started").exists()
