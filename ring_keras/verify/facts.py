"""What the script does when it is run as one process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from ring_keras.verify.one_process import alone
from ring_keras.verify.recording import Recording

__all__ = ["Facts", "facts_of", "facts_of_one_process", "write_facts"]

_TIMEOUT_S = 600


@dataclass(frozen=True)
class Facts:
    """What a script's first `fit` begins with.

    Attributes:
        learning_rate: Once warm-up is over; None if unknown.
        epoch_examples: How many its data have; None if unknown.
    """

    learning_rate: float | None
    epoch_examples: int | None


def facts_of(recording: Recording) -> Facts:
    """Those of this process's run of the script."""
    epoch = None
    if recording.epoch_steps is not None:
        epoch = recording.epoch_steps * recording.batch_size
    return Facts(recording.learning_rate, epoch)


def facts_of_one_process(script: Sequence[str]) -> Facts | str:
    """Runs the script once more, as a job of one; or says why there is nothing."""
    with tempfile.TemporaryDirectory(prefix="ring_keras-verify-") as directory:
        file = Path(directory) / "facts.json"
        command = [sys.executable, "-m", "ring_keras.verify", "--facts", str(file)]
        try:
            ended = subprocess.run(
                [*command, *script],
                env=alone(dict(os.environ)),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
                errors="replace",
                timeout=_TIMEOUT_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return f"it took no step within {_TIMEOUT_S} s"
        if file.exists():
            return Facts(**json.loads(file.read_text()))
        lines = ended.stderr.strip().splitlines() or ["it took no step"]
        return lines[-1]


def write_facts(recording: Recording, file: Path) -> None:
    """For `facts_of_one_process`, in the process that it starts."""
    file.write_text(json.dumps(asdict(facts_of(recording))))
