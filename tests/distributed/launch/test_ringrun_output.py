"""What ranks print arrives whole, marked, and in files."""

import os
import select
import subprocess
import sys
import time

import pytest
from support.processes import wait_until, wait_until_dead
from support.ringrun import Ringrun


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_every_rank_runs_and_its_lines_are_marked(ringrun, size):
    finished = ringrun.run('print("I am", rank, "of", size)', size=size)

    assert finished.returncode == 0
    expected = [f"[{rank}] I am {rank} of {size}" for rank in range(size)]
    assert sorted(finished.stdout.decode().splitlines()) == expected
    assert finished.stderr == b""


def test_lines_stay_whole_while_all_ranks_write(ringrun):
    script = """
    for index in range(3000):
        # In pieces, so that writes of different ranks fall between each other.
        for piece in (f"{index:05d}", ":", "abc" * (index % 50), "\\n"):
            os.write(1, piece.encode())
    """

    finished = ringrun.run(script, size=4)

    lines = finished.stdout.decode().splitlines()
    for rank in range(4):
        mine = [line for line in lines if line.startswith(f"[{rank}] ")]
        assert mine == [
            f"[{rank}] {index:05d}:" + "abc" * (index % 50) for index in range(3000)
        ]
    assert len(lines) == 4 * 3000


def test_standard_error_is_kept_apart(ringrun):
    finished = ringrun.run('print("out"); print("err", file=sys.stderr)', size=1)

    assert finished.stdout == b"[0] out\n"
    assert finished.stderr == b"[0] err\n"


def test_any_bytes_pass_and_a_line_of_a_megabyte_stays_whole(ringrun):
    script = r"""
    os.write(1, b"nul \0, no utf-8 \xff\xfe\n" + b"x" * (1 << 20) + b"\n")
    """

    finished = ringrun.run(script, size=1)

    assert finished.stdout == (
        b"[0] nul \0, no utf-8 \xff\xfe\n[0] " + b"x" * (1 << 20) + b"\n"
    )


def test_a_last_line_without_newline_is_shown(ringrun):
    script = 'sys.stdout.write("no newline"); sys.stdout.flush(); os._exit(0)'

    assert ringrun.run(script, size=1).stdout == b"[0] no newline\n"


def test_a_progress_bar_leaves_its_last_state(ringrun):
    script = r'print("10%\r20%\r100%")'

    assert ringrun.run(script, size=1).stdout == b"[0] 100%\n"


def test_output_dir_holds_each_ranks_bytes(ringrun, tmp_path):
    script = r"""
    os.write(1, b"out %d\r\xff" % rank)
    os.write(2, b"err %d\n" % rank)
    """
    directory = tmp_path / "new" / "logs"

    finished = ringrun.run(script, "--output-dir", str(directory), size=2)

    assert finished.returncode == 0
    for rank in range(2):
        folder = directory / f"rank.{rank}"
        assert (folder / "stdout").read_bytes() == b"out %d\r\xff" % rank
        assert (folder / "stderr").read_bytes() == b"err %d\n" % rank
        assert b"[%d] err %d\n" % (rank, rank) in finished.stderr


def test_a_file_that_cannot_be_written_costs_only_itself(ringrun, tmp_path):
    # More than a pipe holds: a rank whose output is not read would wait.
    script = 'print("x" * (1 << 20))'
    line = b"x" * (1 << 20) + b"\n"
    full = tmp_path / "logs" / "rank.0" / "stdout"
    full.parent.mkdir(parents=True)
    full.symlink_to("/dev/full")

    finished = ringrun.run(script, "--output-dir", str(tmp_path / "logs"), size=2)

    assert finished.returncode == 0
    assert sorted(finished.stdout.splitlines(keepends=True)) == [
        b"[0] " + line,
        b"[1] " + line,
    ]
    assert (tmp_path / "logs" / "rank.1" / "stdout").read_bytes() == line
    assert finished.stderr.decode() == (
        f"ringrun: cannot write {full} (No space left on device): "
        "it is incomplete; the job goes on\n"
    )


def test_a_file_that_cannot_be_opened_is_told_at_the_start(ringrun, tmp_path):
    (tmp_path / "rank.1").write_text("no directory")

    finished = ringrun.run("wait_to_be_ended()", "--output-dir", str(tmp_path))

    assert finished.returncode == 1
    assert finished.verdict.startswith("ringrun: [RK810] cannot start the ranks: ")
    assert "rank.1" in finished.verdict
    assert b"Traceback" not in finished.stderr


def test_lines_appear_while_the_rank_still_runs(ringrun):
    process = ringrun.start('print("first"); wait_for("go"); print("last")', size=1)

    assert process.stdout.readline() == b"[0] first\n"
    (ringrun.directory / "go").touch()
    assert ringrun.finish(process).stdout == b"[0] last\n"


@pytest.mark.parametrize("closed", ["2>&-", ">&-", "<&- >&- 2>&-"])
def test_a_closed_output_is_none(tmp_path, closed):
    """Nothing else is taken for it, and the job goes its way."""
    ringrun = Ringrun(tmp_path, ["sh", "-c", f'exec "$@" {closed}', "sh"])
    try:
        finished = ringrun.run("print('hello')\nnote(f'ran{rank}')\nsys.exit(0)")
    finally:
        ringrun.close()

    assert finished.returncode == 0
    assert b"Traceback" not in finished.stderr
    for rank in range(2):
        ringrun.noted(f"ran{rank}")


def test_ranks_read_no_input(ringrun):
    finished = ringrun.run("print(repr(sys.stdin.read()))", size=2)

    assert sorted(finished.stdout.splitlines()) == [b"[0] ''", b"[1] ''"]


def test_the_job_ends_when_nobody_reads_its_output(ringrun):
    script = """
    note(f"pid{rank}", os.getpid())
    while True:
        print("line", flush=True)
        time.sleep(0.001)
    """
    process = ringrun.start(script, "--grace-period", "1")
    process.stdout.readline()

    process.stdout.close()

    _, stderr = process.communicate(timeout=30)
    assert process.returncode == 128 + 13
    assert b"nobody reads its output" in stderr


def test_output_that_nobody_reads_after_the_ranks_is_still_filed(ringrun, tmp_path):
    script = """
    import fcntl
    fcntl.fcntl(1, fcntl.F_SETPIPE_SZ, 1 << 20)  # So that all fits.
    note(f"pid{rank}", os.getpid())
    os.write(1, (b"x" * 63 + b"\\n") * ((1 << 20) // 64))
    """
    directory = tmp_path / "output"
    options = ("--min-np", "1", "--output-dir", str(directory))
    process = ringrun.start(script, *options, size=4, stderr=subprocess.DEVNULL)
    wait_until_dead(ringrun.pids("pid0", "pid1", "pid2", "pid3"))

    process.stdout.close()

    assert process.wait(timeout=30) == 128 + 13
    for rank in range(4):
        assert (directory / f"rank.{rank}" / "stdout").stat().st_size == 1 << 20


def test_a_non_blocking_output_is_waited_for(ringrun):
    line = b"x" * (1 << 20) + b"\n"
    ours, theirs = os.pipe()
    os.set_blocking(theirs, False)
    try:
        process = ringrun.start('print("x" * (1 << 20))', size=1, stdout=theirs)
        wait_until(
            lambda: not select.select([], [theirs], [], 0)[1], "the pipe is full"
        )
        shown = read_until(ours, b"\n")
    finally:
        os.close(ours)
        os.close(theirs)

    assert shown == b"[0] " + line
    finished = ringrun.finish(process)
    assert finished.returncode == 0
    assert finished.stderr == b""


def test_a_terminal_shows_coloured_prefixes_and_one_moving_bar(ringrun):
    script = r"""
    sys.stdout.write("\r10%"); sys.stdout.flush()
    wait_for("go")
    sys.stdout.write("\r20%\ndone\n")
    """
    ours, theirs = os.openpty()
    try:
        process = ringrun.start(script, size=1, stdout=theirs)
        shown = read_until(ours, b"10%")
        (ringrun.directory / "go").touch()
        shown += read_until(ours, b"done")
        assert ringrun.finish(process).returncode == 0
    finally:
        os.close(ours)
        os.close(theirs)
    mark = b"\x1b[36m[0]\x1b[0m "
    assert shown.startswith(b"\r\x1b[K" + mark + b"10%\r\x1b[K")
    assert mark + b"20%\r\n" + mark + b"done" in shown


def read_until(fd: int, end: bytes, timeout_s: float = 30) -> bytes:
    """Reads up to the first time that `end` has come."""
    deadline = time.monotonic() + timeout_s
    got = b""
    while end not in got:
        time_left = max(0.0, deadline - time.monotonic())
        assert select.select([fd], [], [], time_left)[0], f"only {got[-200:]!r} came"
        got += os.read(fd, 1 << 16)
    return got


@pytest.mark.slow
def test_what_tensorflow_says_at_its_start_is_shown_once(ringrun, tmp_path):
    script = "import tensorflow"
    files = ["--output-dir", str(tmp_path / "output")]

    alone = ringrun.run(script, size=1).stderr.splitlines()
    shown = ringrun.run(script, *files, size=3).stderr.splitlines()
    raw = ringrun.run(script, "--raw", size=3).stderr.splitlines()

    assert alone, "TensorFlow says nothing: is there TF_CPP_MIN_LOG_LEVEL?"
    assert len(shown) == len(alone)
    assert len(raw) == 3 * len(alone)
    for rank in range(3):
        file = tmp_path / "output" / f"rank.{rank}" / "stderr"
        assert len(file.read_text().splitlines()) == len(alone), "it is as it is"


@pytest.mark.parametrize("raw", [False, True])
def test_a_warning_that_all_ranks_have_is_shown_once(ringrun, raw):
    finished = ringrun.run(
        """
        import warnings
        warnings.warn("the same")
        warnings.warn(f"of rank {rank}")
        """,
        *(["--raw"] if raw else []),
        size=3,
    )

    assert finished.returncode == 0
    stderr = finished.stderr.decode()
    assert stderr.count("UserWarning: the same\n") == (3 if raw else 1)
    assert stderr.count('  warnings.warn("the same")\n') == (3 if raw else 1)
    assert [f"of rank {rank}\n" in stderr for rank in range(3)] == [True] * 3


def test_the_first_rank_alone_lists_a_tools_options(ringrun):
    command = [sys.executable, "-m", "ring_keras", "analyze", "--help"]
    finished = ringrun.finish(ringrun.start_raw("-np", "2", *command))

    assert finished.returncode == 0
    lines = finished.stdout.decode().splitlines()
    assert lines[0].startswith("[0] usage: ring analyze")
    assert all(line.startswith("[0] ") for line in lines)
