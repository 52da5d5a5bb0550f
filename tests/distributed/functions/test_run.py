"""`ring_keras.run` from a script."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from support.processes import wait_until_dead
from support.variants import variants

import ring_keras as ring

_TIMEOUT_S = 200


@contextmanager
def started(directory: Path, script: str) -> Iterator[subprocess.Popen[str]]:
    """A script that calls it, in a session of its own."""
    path = directory / "script.py"
    # A background job of a shell ignores Ctrl-C, and so would what it starts.
    path.write_text(
        "import os, signal, time\n"
        "import ring_keras as ring\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
    )
    with path.open("a") as file:
        file.write(textwrap.dedent(script))
    with subprocess.Popen(
        [sys.executable, str(path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(directory)},
        start_new_session=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def printed(directory: Path, script: str) -> tuple[str, str]:
    """What it prints on both streams; it ends well, and leaves nothing behind."""
    with started(directory, script) as process:
        out, errors = process.communicate(timeout=_TIMEOUT_S)
    assert process.returncode == 0, errors
    assert [path.name for path in directory.iterdir()] == ["script.py"]
    return out, errors


@pytest.mark.slow
def test_a_script_s_own_functions_and_classes_travel_and_come_back(tmp_path):
    script = """
        class Point:
            def __init__(self, x):
                self.x = x

        factor = 7

        def scaled(x):
            return Point(factor * x)

        def work(start, step=0):
            ring.init()
            total = ring.allreduce(float(ring.rank()), op=ring.Sum)
            print(f"total {float(total):g}")
            return scaled(start + step * ring.rank())

        # No `if __name__ == "__main__"`: ranks do not run the script.
        results = ring.run(work, [2], {"step": 1}, np=2)
        assert all(isinstance(result, Point) for result in results)
        print("results", [result.x for result in results])
        print("again", ring.run(lambda: os.environ["RING_KERAS_SIZE"], np=3))
    """
    out, _ = printed(tmp_path, script)

    lines = out.splitlines()
    assert sorted(lines[:2]) == ["[0] total 1", "[1] total 1"]
    assert lines[2:] == ["results [14, 21]", "again ['3', '3', '3']"]


@pytest.mark.slow
def test_what_a_rank_raises_is_shown_once_with_whose_it_is(tmp_path):
    script = """
        def work():
            ring.init()
            if ring.rank() == 1:
                raise ValueError("no data here")
            ring.barrier()

        try:
            ring.run(work, np=2)
        except ring.RankFailedError as error:
            assert error.rank == 1
            print(error)
    """
    out, errors = printed(tmp_path, script)

    assert re.match(
        r"rank 1 \(host \S+, pid \d+\) raised ValueError: no data here\n", out
    )
    assert 'raise ValueError("no data here")' in out
    assert out.count("Traceback") == 1
    assert "Traceback" not in errors


@pytest.mark.slow
def test_a_rank_that_is_killed_is_named(tmp_path):
    script = """
        def work():
            ring.init()
            if ring.rank() == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            ring.barrier()

        try:
            ring.run(work, np=2)
        except ring.RankFailedError as error:
            print(error.rank, error)
    """
    out, _ = printed(tmp_path, script)

    assert re.match(
        r"None \[RK802\] rank 1 \(host \S+, pid \d+\) was killed by SIGKILL", out
    )
    assert "Traceback" not in out


@pytest.mark.parametrize(
    ("call", "error"),
    variants(
        [
            ("os._exit(0)", "0 rank 0 ended its process before its function returned"),
            # A process that ends badly has not done its work, whatever it has returned.
            (
                "atexit.register(os._exit, 4)",
                "None [RK801] rank 0 (host HOST) exited with code 4",
            ),
        ],
        [
            ("sys.exit(3)", "0 rank 0 (host HOST) raised SystemExit: 3"),
            (
                "threading.Lock()",
                "0 rank 0 (host HOST) raised TypeError: cannot pickle",
            ),
        ],
    ),
)
def test_a_rank_that_does_not_return_is_an_error(tmp_path, call, error):
    script = f"""
        def work():
            import atexit, sys, threading
            return {call}

        try:
            ring.run(work, np=1)
        except ring.RankFailedError as error:
            print(error.rank, error)
    """
    out, _ = printed(tmp_path, script)

    said = re.sub(r"\(host \S+, pid \d+\)", "(host HOST)", out)
    assert said.startswith(error)


def test_ctrl_c_stops_the_ranks(tmp_path):
    script = """
        def work():
            print("pid", os.getpid(), flush=True)
            time.sleep(1000)

        try:
            ring.run(work, np=2)
        except KeyboardInterrupt:
            print("interrupted")
    """
    with started(tmp_path, script) as process:
        pids = [int(process.stdout.readline().split()[-1]) for _ in range(2)]
        process.send_signal(signal.SIGINT)
        out, errors = process.communicate(timeout=_TIMEOUT_S)

    assert (process.returncode, out) == (0, "interrupted\n"), errors
    wait_until_dead(pids)


def test_ranks_end_with_their_caller(tmp_path):
    script = """
        def work():
            print("pid", os.getpid(), flush=True)
            time.sleep(1000)

        ring.run(work, np=2)
    """
    with started(tmp_path, script) as process:
        pids = [int(process.stdout.readline().split()[-1]) for _ in range(2)]
        process.kill()
        process.communicate(timeout=_TIMEOUT_S)

    wait_until_dead(pids)


def test_output_goes_where_the_caller_s_goes(capsys):
    def work():
        import sys

        print("printed")
        print("warned", file=sys.stderr)

    ring.run(work, np=2)

    out, errors = capsys.readouterr()
    assert sorted(out.splitlines()) == ["[0] printed", "[1] printed"]
    assert sorted(errors.splitlines()) == ["[0] warned", "[1] warned"]


def test_what_cannot_travel_is_refused_before_any_rank_starts(capsys):
    import threading

    lock = threading.Lock()
    with pytest.raises(TypeError, match=r"run\(\) cannot send .*lock.*inside the fun"):
        ring.run(lambda: lock, np=2)
    assert capsys.readouterr() == ("", "")


def test_options_are_ringrun_s(capsys):
    def work():
        return os.environ["COLOUR"]

    options = ["-x", "COLOUR=red", "--verbose"]
    assert ring.run(work, np=1, options=options) == ["red"]
    assert "ringrun: rank 0 is pid" in capsys.readouterr().err

    with pytest.raises(ring.RankFailedError, match="ringrun exited with code 2"):
        ring.run(work, np=1, options=["--nonsense"])
    assert "--nonsense" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [
        {"np": 0},
        {"np": 2, "options": ["--min-np=1"]},
        {"np": 2, "options": ["-np", "3"]},
        {"np": 2, "options": ["--np", "3"]},
        {"np": 2, "options": ["-np3"]},
        {"np": 2, "options": ["--raw", "--num-processes=3"]},
        {"np": 2, "options": ["--min-num-proc", "1"]},
        {"np": 2, "options": ["--num_machines", "2"]},
        {"np": 2, "options": ["--host-discovery-script", "find"]},
    ],
)
def test_how_many_ranks_is_said_once(arguments):
    with pytest.raises(ValueError, match=f"np={arguments['np']}"):
        ring.run(print, **arguments)


def test_importing_it_needs_no_tensorflow():
    code = "import sys, ring_keras.functions.run; sys.exit('tensorflow' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=_TIMEOUT_S)
