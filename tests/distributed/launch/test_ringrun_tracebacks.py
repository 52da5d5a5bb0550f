"""Tracebacks of ranks are shown once, with whose they are, and codes are explained."""

import re

import pytest

# Errors are the core's own: to raise ours, TensorFlow would be imported.
JOIN = """
import numpy as np
from ring_keras import _native
from ring_keras.config import Config
sys.modules["tensorflow"] = None
_native.init(**Config.from_environment().init_options())
def train():
    _native.allreduce(np.ones(3, np.float32), name="gradient")
"""
RAISES_EVERYWHERE = """
def work():
    raise ValueError(f"no data for rank {rank}")
try:
    1 / 0
except ZeroDivisionError:
    work()
"""


def lines_of(finished):
    return finished.stderr.decode().splitlines()


def test_the_same_error_on_all_ranks(ringrun, tmp_path):
    finished = ringrun.run(
        RAISES_EVERYWHERE, "--output-dir", str(tmp_path / "output"), size=4
    )

    lines = lines_of(finished)
    assert "[0] ValueError: no data for rank 0" in lines
    assert lines.count("ringrun: ranks 0-3 raised this ValueError") == 1
    # With what led to it.
    assert sum("Traceback (most" in line for line in lines) == 2
    assert sum("ZeroDivisionError: " in line for line in lines) == 1
    assert finished.returncode == 1
    for rank in range(4):
        file = (tmp_path / "output" / f"rank.{rank}" / "stderr").read_text()
        assert file.count("Traceback (most") == 2
        assert file.endswith(f"ValueError: no data for rank {rank}\n")


def test_raw_shows_each(ringrun):
    lines = lines_of(ringrun.run(RAISES_EVERYWHERE, "--raw", size=4))

    for rank in range(4):
        assert f"[{rank}] ValueError: no data for rank {rank}" in lines
    assert not any(" raised this " in line for line in lines)


def test_different_errors_are_all_shown(ringrun):
    script = """
    if rank == 0:
        raise ValueError("of rank 0")
    def other():
        raise ValueError("of another")
    other()
    """

    lines = lines_of(ringrun.run(script, size=3))

    assert "[0] ValueError: of rank 0" in lines
    assert "[1] ValueError: of another" in lines
    assert "ringrun: ranks 1-2 raised this ValueError" in lines
    assert sum("Traceback (most" in line for line in lines) == 2


def test_who_fails_because_of_another_has_a_line(ringrun):
    script = (
        JOIN
        + """
def mine():
    # As a rank leaves whose program has raised.
    error = ValueError("no such file\\nsecond line")
    import traceback
    try:
        raise error
    except ValueError:
        traceback.print_exc()
    _native.shutdown("raised ValueError: no such file")
    os._exit(1)
mine() if rank == 2 else train()
"""
    )

    finished = ringrun.run(script, size=4)

    lines = lines_of(finished)
    assert "[2] ValueError: no such file" in lines
    assert "[2] second line" in lines
    (following,) = [line for line in lines if "because of rank 2" in line]
    assert following.startswith(
        "ringrun: ranks 0-1, 3: PeerLostError because of rank 2: [RK202] rank 2 (host "
    )
    assert sum("Traceback (most" in line for line in lines) == 1
    assert finished.verdict.startswith("ringrun: [RK801] rank 2 (host ")


def test_a_rank_that_is_killed_is_told_of_once(ringrun):
    script = JOIN + "os.kill(os.getpid(), signal.SIGKILL) if rank == 1 else train()"

    finished = ringrun.run(script, size=4)

    lines = lines_of(finished)
    assert sum("Traceback (most" in line for line in lines) == 1
    assert "ringrun: ranks 0, 2-3 raised this PeerLostError" in lines
    assert re.search(r"PeerLostError: \[RK201\] rank 1 \(host ", "\n".join(lines))
    assert lines[-2] == (
        "ringrun: `ringrun --explain RK201,RK802` says what that means, and what to do"
    )
    assert finished.verdict.startswith("ringrun: [RK802] rank 1 (host ")


def test_ranks_that_disagree_say_so_once(ringrun):
    script = (
        JOIN + "_native.allreduce(np.ones(3 + rank // 2, np.float32), name='gradient')"
    )

    lines = lines_of(ringrun.run(script, size=4))

    assert sum("Traceback (most" in line for line in lines) == 1
    assert "ringrun: ranks 0-3 raised this RankMismatchError" in lines
    assert lines[-2] == (
        "ringrun: `ringrun --explain RK302` says what that means, and what to do"
    )


@pytest.mark.parametrize("options", [(), ("--raw",)])
def test_a_program_may_print_a_traceback_and_go_on(ringrun, options):
    script = """
    import traceback
    print("before", file=sys.stderr)
    try:
        raise ValueError("caught")
    except ValueError:
        traceback.print_exc()
    note(f"printed{rank}")
    for other in range(size):
        wait_for(f"printed{other}")
    print("after", rank, file=sys.stderr)
    """

    finished = ringrun.run(script, *options)

    assert finished.returncode == 0
    lines = lines_of(finished)
    shown = 2 if options else 1
    assert lines.count("ringrun: ranks 0-1 raised this ValueError") == 2 - shown
    assert sum("ValueError: caught" in line for line in lines) == shown
    for rank in range(2):
        mine = [line for line in lines if line.startswith(f"[{rank}] ")]
        assert mine[0] == f"[{rank}] before"
        assert mine[-1] == f"[{rank}] after {rank}"


def test_a_rank_that_dies_in_the_middle_of_a_traceback(ringrun):
    script = """
    sys.stderr.write("Traceback (most recent call last):\\n  File x, line 1\\n    f(")
    sys.stderr.flush()
    os._exit(3)
    """

    lines = lines_of(ringrun.run(script))

    for rank in range(2):
        mine = [line for line in lines if line.startswith(f"[{rank}] ")]
        assert mine == [
            f"[{rank}] Traceback (most recent call last):",
            f"[{rank}]   File x, line 1",
            f"[{rank}]     f(",
        ]
