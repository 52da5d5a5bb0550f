"""Runs the script on this rank, and compares on rank 0."""

from __future__ import annotations

import argparse
import runpy
import sys
from collections.abc import Sequence
from pathlib import Path

import ring_keras as ring
from ring_keras.verify.comparison import compare_steps
from ring_keras.verify.facts import facts_of_one_process, write_facts
from ring_keras.verify.of_all_ranks import gather
from ring_keras.verify.one_process import leave_job
from ring_keras.verify.recording import EnoughStepsError, Recording

__all__ = ["main"]

_DESCRIPTION = """\
Trains a few steps of a script's first model.fit() on the ranks of a job, and then
the same steps in one process on the global batches. Says where the two first
differ, and the usual reason. The script needs no change. It ends after these steps.
"""
_NOTHING_TO_COMPARE = 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit code: 1 on rank 0 if something differs."""
    parser = argparse.ArgumentParser(
        prog="ring verify",
        usage="ringrun -np N ring verify [--steps K] SCRIPT|-m MODULE [argument ...]",
        description=_DESCRIPTION,
        allow_abbrev=False,
    )
    parser.add_argument(
        "--steps", type=int, default=3, help="steps to compare (default: %(default)s)"
    )
    # For the process that this program starts itself.
    parser.add_argument("--facts", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("-m", dest="as_module", action="store_true")
    parser.add_argument("script", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if not options.script:
        parser.error("which script?")
    if not options.as_module and not Path(options.script[0]).exists():
        parser.error(f"there is no file {options.script[0]}")
    if options.steps < 1:
        parser.error(f"--steps must be at least 1, not {options.steps}")
    recording = Recording(1 if options.facts else options.steps)
    try:
        with recording.of_first_fit():
            _run(options.script, as_module=options.as_module)
    except EnoughStepsError:
        pass
    if not recording.after:
        print("ring_keras.verify: the script called no model.fit()", file=sys.stderr)
        return _NOTHING_TO_COMPARE
    if options.facts:
        write_facts(recording, options.facts)
        return 0
    script = ["-m"] * options.as_module + options.script
    return _compare(recording, script)


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
