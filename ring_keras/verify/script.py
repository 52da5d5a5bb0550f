"""Runs a script on this rank, and compares on rank 0."""

import runpy
import sys
from pathlib import Path

import ring_keras as ring
from ring_keras.verify.comparison import compare_steps
from ring_keras.verify.facts import facts_of_one_process, write_facts
from ring_keras.verify.of_all_ranks import gather
from ring_keras.verify.one_process import leave_job
from ring_keras.verify.recording import EnoughStepsError, Recording

__all__ = ["verify_script"]

_NOTHING_TO_COMPARE = 2


def verify_script(
    script: list[str], *, as_module: bool, steps: int, facts: Path | None
) -> int:
    """Returns the exit code: 1 on rank 0 if something differs.

    Args:
        script: Its file, or the name of a module, and its arguments.
        as_module: Whether it is a module.
        steps: How many are compared.
        facts: In the process that this program starts itself: where it writes what it
            has found.
    """
    recording = Recording(1 if facts else steps)
    try:
        with recording.of_first_fit():
            _run(script, as_module=as_module)
    except EnoughStepsError:
        pass
    if not recording.after:
        print("ring_keras.verify: the script called no model.fit()", file=sys.stderr)
        return _NOTHING_TO_COMPARE
    if facts:
        write_facts(recording, facts)
        return 0
    return _compare(recording, ["-m"] * as_module + script)


def _run(script: list[str], *, as_module: bool) -> None:
    """Becomes the script."""
    sys.argv = list(script)
    if as_module:
        sys.path[0] = str(Path.cwd())  # As `python -m` has it.
        runpy.run_module(script[0], run_name="__main__", alter_sys=True)
    else:
        sys.path[0] = str(Path(script[0]).resolve().parent)
        runpy.run_path(script[0], run_name="__main__")


def _compare(recording: Recording, script: list[str]) -> int:
    joined = ring.is_initialized()
    if not joined:
        ring.init()
    rank, size = ring.rank(), ring.size()
    if size == 1:
        print(
            "ring_keras.verify: one rank has nothing to differ from: start it by "
            "`ringrun -np 2 ring verify ...`",
            file=sys.stderr,
        )
        return _NOTHING_TO_COMPARE
    of_all = gather(recording)
    leave_job()
    if rank > 0:
        return 0
    one = facts_of_one_process(script)
    comparison = compare_steps(recording, of_all, one, joined)
    print("\n".join(comparison.lines()), flush=True)
    return int(bool(comparison.findings))
