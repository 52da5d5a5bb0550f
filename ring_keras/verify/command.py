"""The command line of `ring verify`."""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Sequence
from pathlib import Path

__all__ = ["main"]

_DESCRIPTION = """\
Trains a few steps of a script's first model.fit() on the ranks of a job, and then
the same steps in one process on the global batches. Says where the two first
differ, and the usual reason. The script needs no change. It ends after these steps.
"""


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
    # By its name: TensorFlow, which that needs, takes seconds.
    module = importlib.import_module("ring_keras.verify.script")
    code: int = module.verify_script(
        options.script,
        as_module=options.as_module,
        steps=options.steps,
        facts=options.facts,
    )
    return code
