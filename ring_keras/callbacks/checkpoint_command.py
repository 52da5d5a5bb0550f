"""`ring checkpoint DIRECTORY`: what is there, and one file of it."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from ring_keras.callbacks.checkpoint_files import CheckpointFiles, CheckpointName
from ring_keras.callbacks.checkpoint_reading import whole_checkpoint
from ring_keras.errors import RingKerasError
from ring_keras.training.whole_file import write_whole

_WEIGHTS = ".weights.h5"


def main(arguments: Sequence[str] | None = None) -> int:
    """Puts the parts together, or lists what there is; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="ring checkpoint",
        description="Makes one file of a checkpoint of ring_keras.callbacks.Checkpoint,"
        " for keras.models.load_model. Without --into, lists the checkpoints.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("directory", metavar="DIRECTORY", help="a path, or a URL such as s3://...")
    add(
        "--into",
        type=Path,
        metavar="FILE",
        help="a path that ends in .keras, or in .weights.h5 for load_weights()",
    )
    add(
        "--step",
        type=int,
        metavar="N",
        help="the checkpoint of this step; the newest complete one by default",
    )
    options = parser.parse_args(arguments)
    into: Path | None = options.into
    if into is not None and not into.name.endswith((".keras", _WEIGHTS)):
        parser.error(
            f"--into takes a path that ends in .keras or {_WEIGHTS}. Received: {into}"
        )
    try:
        files = CheckpointFiles(options.directory)
        if into is None:
            return _list(files)
        name = _chosen(files, options.directory, options.step)
        with whole_checkpoint(files, name) as whole:
            is_weights = into.name.endswith(_WEIGHTS)
            content = whole.weights() if is_weights else whole.archive()
        write_whole(into, content, unfinished=f".unfinished.{into.name}")
    except (OSError, RingKerasError, ValueError) as error:
        print(f"ring checkpoint: {error}", file=sys.stderr)
        return 1
    print(f"{into}: the checkpoint of {name}, by {name.size} ranks")
    return 0


def _list(files: CheckpointFiles) -> int:
    found = files.found()
    for name in sorted(found):
        there = len(found[name])
        state = "complete" if there == name.size else "not complete"
        print(f"{name}: {there} of {name.size} parts, {state}")
    return 0 if found else 1


def _chosen(files: CheckpointFiles, directory: str, step: int | None) -> CheckpointName:
    complete = files.complete()
    for name in complete:
        if step is None or name.steps == step:
            return name
    there = ", ".join(f"{name.steps}" for name in reversed(complete)) or "none"
    wanted = "checkpoint" if step is None else f"checkpoint of step {step}"
    raise RingKerasError(
        f"[RK519] there is no complete {wanted} in {directory}. Complete are those of "
        f"steps: {there}."
    )


if __name__ == "__main__":
    sys.exit(main())
