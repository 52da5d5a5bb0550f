"""What it costs that ranks encrypt what they send each other.

    python -m benchmarks.encryption [--rounds N]

Two jobs of two ranks, over TCP within this machine, of which one encrypts, measure in
turn; what is printed is the median of the rounds, and the quartiles. Let nothing else
run meanwhile.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from ring_keras import _native
from ring_keras.config import Config

# Bytes, and calls in a round.
_SIZES = {4: 1000, 64 << 10: 200, 16 << 20: 4}
_NAMES = {4: "4 B", 64 << 10: "64 KiB", 16 << 20: "16 MiB"}
_LOOK_S = 0.001


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.encryption")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.folder is not None:
        _measure(options.folder, options.rounds)
        return 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "turn").write_text("0")
        command = [sys.executable, "-m", "ring_keras.launch", "-np", "2"]
        command += ["--bind-to", "cores", "--transport", "tcp"]
        own = [sys.executable, "-m", "benchmarks.encryption", "--folder", name]
        own += ["--rounds", str(options.rounds)]
        jobs = [subprocess.Popen([*command, *e, *own]) for e in ([], ["--encrypt"])]
        codes = [job.wait() for job in jobs]
        if any(codes):
            return max(codes)
        results = [json.loads((folder / f"job{job}").read_text()) for job in (0, 1)]
    _report(results)
    return 0


def _measure(folder: Path, rounds: int) -> None:
    """One rank's part; the first of each job waits for the job's turns."""
    # Without it errors are RuntimeErrors, and nobody waits for TensorFlow.
    sys.modules["tensorflow"] = None  # type: ignore[assignment]
    config = Config.from_environment()
    _native.init(**config.init_options())
    job, rank = int(config.encrypt), config.rank
    times: dict[int, list[float]] = {nbytes: [] for nbytes in _SIZES}
    arrays = {nbytes: np.ones(nbytes // 4, np.float32) for nbytes in _SIZES}
    turn = folder / "turn"
    for number in range(rounds):
        while rank == 0 and turn.read_text() != str(2 * number + job):
            time.sleep(_LOOK_S)
        for nbytes, calls in _SIZES.items():
            _native.barrier("round")
            start = time.perf_counter()
            for _ in range(calls):
                _native.allreduce(arrays[nbytes], "sum", f"of{nbytes}", arrays[nbytes])
            times[nbytes].append((time.perf_counter() - start) / calls)
            arrays[nbytes][:] = 1
        _native.barrier("round")
        if rank == 0:
            unfinished = folder / f"turn.{job}"
            unfinished.write_text(str(2 * number + job + 1))
            unfinished.rename(turn)
    if rank == 0:
        (folder / f"job{job}").write_text(json.dumps(times))
    _native.shutdown("it is measured")


def _report(results: list[dict[str, list[float]]]) -> None:
    print("| | in the clear | encrypted | ratio |\n|---|---|---|---|")
    for nbytes, name in _NAMES.items():
        plain, encrypted = (result[str(nbytes)] for result in results)
        ratio = statistics.median(b / a for a, b in zip(plain, encrypted, strict=True))
        cells = [_in_words(times) for times in (plain, encrypted)]
        print(f"| {name} | {cells[0]} | {cells[1]} | {ratio:.2f} |")


def _in_words(seconds: list[float]) -> str:
    low, middle, high = (1e6 * q for q in statistics.quantiles(seconds, n=4))
    return f"{middle:,.1f} us ({low:,.1f}-{high:,.1f})"


if __name__ == "__main__":
    sys.exit(main())
