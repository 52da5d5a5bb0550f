"""What it costs that the engine notes every collective.

    python -m benchmarks.recording [--quick]

Two ranks do the same with and without, in turn, many times; what is printed is the
median of the differences, and the quartiles. Let nothing else run meanwhile.
"""

from __future__ import annotations

import argparse
import functools
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

import ring_keras as ring
from benchmarks.ranks.models import custom_loop, fit_loop
from ring_keras import _native

_CALLS = 2000
_STEPS = 40


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.recording")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--rank", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if not options.rank:
        command = [sys.executable, "-m", "ring_keras.launch", "-np", "2"]
        command += ["--bind-to", "cores", sys.executable, "-m", "benchmarks.recording"]
        return subprocess.call([*command, "--rank", *sys.argv[1:]])
    pairs = 15 if options.quick else 100
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(2)
    ring.init()
    _compare("4-byte allreduce", _allreduces, pairs, 1e9, "ns")
    custom = custom_loop(
        "deep",
        ring.rank(),
        tape_of=ring.DistributedGradientTape,
        start=ring.broadcast_variables,
    )
    fit = fit_loop(
        "deep",
        ring.rank(),
        distribute=ring.DistributedOptimizer,
        callbacks=[ring.callbacks.BroadcastGlobalVariables()],
    )
    for name, loop in (("custom", custom), ("fit", fit)):
        _compare(
            f"deep narrow net, {name}",
            functools.partial(_median_step_s, loop),
            max(5, pairs // 5),
            1e6,
            "us",
        )
    return 0


def _median_step_s(loop: Any) -> float:
    times: list[float] = loop.run(5, _STEPS)
    return statistics.median(times)


def _allreduces() -> float:
    array = np.ones(1, np.float32)
    start = time.perf_counter()
    for _ in range(_CALLS):
        _native.allreduce(array, "sum", "recording", array)
    return (time.perf_counter() - start) / _CALLS


def _compare(
    what: str, measure: Callable[[], float], pairs: int, unit: float, name: str
) -> None:
    """Measures in turn, in another order each time; all ranks do the same."""
    measure()
    with_it, without, differences = [], [], []
    for pair in range(pairs):
        seconds = {}
        for on in (True, False) if pair % 2 else (False, True):
            _native.barrier("before")
            _native.set_recording(on)
            seconds[on] = measure() * unit
        _native.set_recording(True)
        with_it.append(seconds[True])
        without.append(seconds[False])
        differences.append(seconds[True] - seconds[False])
    if ring.rank() == 0:
        low, middle, high = _quartiles(differences)
        base = statistics.median(without)
        print(
            f"{what}: {statistics.median(with_it):.1f} {name} with, {base:.1f} {name} "
            f"without; difference {middle:+.1f} ({low:+.1f} to {high:+.1f}) {name}, "
            f"{100 * middle / base:+.2f} %",
            flush=True,
        )


def _quartiles(values: Sequence[float]) -> tuple[float, float, float]:
    low, middle, high = statistics.quantiles(values, n=4)
    return low, middle, high


if __name__ == "__main__":
    sys.exit(main())
