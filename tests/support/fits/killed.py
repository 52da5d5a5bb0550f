"""Runs a program under ringrun, which goes on without the rank that is killed.

`python -m support.fits.killed DIRECTORY` is what each rank runs.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

from support.job import light_environment

__all__ = ["run_killed"]


def run_killed(
    program: Any, directory: Path, env: dict[str, str], timeout_s: float
) -> tuple[list[dict[str, Any]], tuple[int, int] | None]:
    """The answers of the ranks that are left, and where one was lost, if it was.

    Raises:
        AssertionError: If the job did not end well.
    """
    (directory / "program").write_bytes(pickle.dumps(program))
    size = program.size
    options = ["-np", str(size), "--min-np", str(size - 1)]
    rank = [sys.executable, "-m", "support.fits.killed", str(directory)]
    job = subprocess.Popen(
        [sys.executable, "-m", "ring_keras.launch", *options, *rank],
        env=light_environment() | {"TF_CPP_MIN_LOG_LEVEL": "3"} | env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    try:
        output, _ = job.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        job.terminate()
        output, _ = job.communicate()
        raise AssertionError(f"hung: {_end_of(output)}") from None
    answers = [
        pickle.loads(file.read_bytes()) for file in sorted(directory.glob("answer-*"))
    ]
    note = directory / "lost"
    lost = None
    if note.exists():
        epoch, step = map(int, note.read_text().split())
        lost = epoch, step
    expected = size - (lost is not None)
    if len(answers) != expected or job.returncode:
        raise AssertionError(
            f"{len(answers)} of {expected} ranks have answered, and ringrun ended with "
            f"{job.returncode}: {_end_of(output)}"
        )
    return answers, lost


def _end_of(output: bytes) -> str:
    return output.decode(errors="replace")[-4000:]


def _rank(directory: Path) -> None:
    # Of ranks only: they are to begin at once.
    import ring_keras as ring
    from support.fits import interruptions, running
    from support.fits.ranks import Ranks

    program = pickle.loads((directory / "program").read_bytes())
    ring.init()
    number = int(os.environ["RING_KERAS_RANK"])
    first: list[Any] = [ring.callbacks.Elastic()]
    if number == program.seed % program.size:
        first.insert(0, interruptions.Dies(program.at, directory / "lost"))
    own = directory / f"rank-{number}"
    own.mkdir()
    ours = running.trained(program, Ranks(own, first=first))
    answer = running.answer_of(ours) | {"ours": ours}
    unfinished = directory / f"unfinished-{number}"
    unfinished.write_bytes(pickle.dumps(answer))
    unfinished.rename(directory / f"answer-{number}")


if __name__ == "__main__":
    _rank(Path(sys.argv[1]))
