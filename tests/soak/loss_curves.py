"""The loss of a training after each epoch, beside that of trainings without faults."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from soak.slurm_run import TRAINING
from support.job import light_environment

# Of the last loss, in ranges of those of unfailed runs.
MARGIN = 1.0


def curve_of(directory: Path) -> dict[int, float]:
    """The loss in validation after each epoch, as the last run that has it says."""
    losses: dict[int, float] = {}
    runs = sorted(directory.glob("run.*"), key=lambda path: int(path.suffix[1:]))
    for run in runs:
        for path in sorted(run.glob("curve.*")):
            for line in path.read_text().splitlines():
                said = json.loads(line)
                losses[said["epoch"]] = said["val_sparse_categorical_crossentropy"]
    return losses


def unfailed(directory: Path, epochs: int) -> list[dict[int, float]]:
    """The losses of runs of 2 and 3 ranks from several seeds, without faults."""
    curves = []
    for size, seed in ((3, 1), (2, 1), (3, 2)):
        own = directory / f"unfailed.{size}.{seed}"
        own.mkdir()
        run = str(own / "run.0")
        command = [
            *("nice", sys.executable, "-m", "ring_keras.launch", "-np", str(size)),
            *("--min-np", str(size), sys.executable, str(TRAINING)),
            *(run, str(epochs), "0", str(seed), "-"),
        ]
        with (own / "output").open("wb") as output:
            subprocess.run(
                command, env=light_environment(), stdout=output, stderr=output
            ).check_returncode()
        curves.append(curve_of(own))
    return curves


def compare(losses: dict[int, float], others: list[dict[int, float]]) -> str:
    """Prints the curve beside those of unfailed runs; what is wrong with it."""
    last = max(losses)
    print("| epoch | loss | of unfailed runs |\n|---|---|---|")
    for epoch in sorted({last * tenth // 10 for tenth in range(11)}):
        theirs = [curve[epoch] for curve in others if epoch in curve]
        if epoch in losses and theirs:
            print(
                f"| {epoch + 1} | {losses[epoch]:.4f} | "
                f"{min(theirs):.4f} to {max(theirs):.4f} |"
            )
    theirs = [curve[last] for curve in others if last in curve]
    # A run like these lies between the extremes of three only half of the time.
    margin = MARGIN * (max(theirs) - min(theirs)) if theirs else 0.0
    if not theirs or not (min(theirs) - margin <= losses[last] <= max(theirs) + margin):
        return f"the last loss is {losses[last]}, of others {theirs}"
    return ""
