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


def ranks_in(lines, what):
    """Those of which ringrun says so; who comes late has a line of its own."""
    pattern = re.compile(rf"ringrun: ranks? ([0-9, -]+):? .*{what}")
    spans = [
        span.split("-")
        for line in lines
        if (match := pattern.match(line))
        for span in match[1].split(", ")
    ]
    return {rank for span in spans for rank in range(int(span[0]), int(span[-1]) + 1)}


def ranks_of_first(lines):
    """Whose traceback is shown."""
    return {
        int(line[1 : line.index("]")]) for line in lines if "Traceback (most" in line
    }


def test_the_same_error_on_all_ranks(ringrun, tmp_path):
    finished = ringrun.run(
        RAISES_EVERYWHERE, "--output-dir", str(tmp_path / "output"), size=4
    )

    lines = lines_of(finished)
    (first,) = ranks_of_first(lines)
    assert f"[{first}] ValueError: no data for rank {first}" in lines
    assert {first} | ranks_in(lines, "raised (this )?ValueError") == {0, 1, 2, 3}
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
    (other,) = ranks_of_first(lines) - {0}
    assert f"[{other}] ValueError: of another" in lines
    assert {other} | ranks_in(lines, "raised (this )?ValueError") == {1, 2}
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
    because = r"PeerLostError because of rank 2: \[RK202\] rank 2 \(host "
    # Whoever comes late is told of one that has exited because of rank 2.
    assert ranks_in(lines, because)
    assert ranks_in(lines, "PeerLostError because of rank [0-3]: ") == {0, 1, 3}
    assert sum("Traceback (most" in line for line in lines) == 1
    # Its exception says why it left.
    assert any("[RK202]" in line for line in lines)
    assert not any("must make the same" in line for line in lines)
    assert finished.verdict.startswith("ringrun: [RK801] rank 2 (host ")


def test_a_rank_that_is_killed_is_told_of_once(ringrun):
    script = JOIN + "os.kill(os.getpid(), signal.SIGKILL) if rank == 1 else train()"

    finished = ringrun.run(script, size=4)

    lines = lines_of(finished)
    assert sum("Traceback (most" in line for line in lines) == 1
    told = ranks_in(lines, "raised this PeerLostError|PeerLostError because of rank 1")
    assert ranks_of_first(lines) | told == {0, 2, 3}
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
    told = ranks_in(lines, "raised (this )?RankMismatchError")
    assert ranks_of_first(lines) | told == {0, 1, 2, 3}
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
    if not options:
        told = ranks_in(lines, "raised (this )?ValueError")
        assert ranks_of_first(lines) | told == {0, 1}
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


@pytest.mark.parametrize("options", [[], ["--raw"]])
@pytest.mark.parametrize(
    "of_keras_2",
    [
        "compile(optimizer='sgd', experimental_run_tf_function=False)",
        "print(optimizer.variables())",
    ],
)
def test_a_script_for_keras_2_is_told_how_to_keep_it(ringrun, of_keras_2, options):
    finished = ringrun.run(
        f"""
        class optimizer:
            variables = []
        def compile(optimizer):
            pass
        {of_keras_2}
        """,
        *options,
    )

    assert finished.returncode == 1
    *_, hint, verdict = lines_of(finished)
    assert hint.startswith("ringrun: a script for Keras 2?")
    assert "TF_USE_LEGACY_KERAS=1" in hint and "docs/horovod.md" in hint
    assert verdict == finished.verdict


def test_nothing_is_said_of_keras_2_to_others(ringrun):
    finished = ringrun.run(
        """
        variables = [1]
        print("variables()", file=sys.stderr)
        variables[0]()
        """
    )

    assert finished.returncode == 1
    assert "Keras 2" not in finished.stderr.decode()


def test_who_was_told_of_anothers_error_is_not_the_cause(ringrun):
    """Rank 0 heard of it, and has left before rank 1 does."""
    script = (
        JOIN
        + """
if rank == 0:
    _native.shutdown("raised RankMismatchError: [RK310] rank 1 cannot take part")
    note("left")
    os._exit(1)
wait_for("left")
_native.shutdown("raised ValueError: no such file")
os._exit(3)
"""
    )

    finished = ringrun.run(script)

    assert finished.returncode == 3
    assert finished.verdict.startswith("ringrun: [RK801] rank 1 (host ")
