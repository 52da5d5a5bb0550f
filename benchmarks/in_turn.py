"""Comparing two ways of doing the same, in turn, on the ranks of one job."""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
from collections.abc import Callable, Sequence

import ring_keras as ring
from ring_keras import _native

__all__ = ["compare", "started_ranks"]

_RANKS = 2


def started_ranks(module: str, description: str) -> tuple[bool, bool]:
    """Starts this program again, on each rank, if it is not one.

    Returns:
        Whether this is a rank, which has joined then, and whether to be quick.
    """
    parser = argparse.ArgumentParser(
        prog=f"python -m {module}", description=description
    )
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--rank", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank:
        ring.init()
        return True, options.quick
    program = [sys.executable, "-m"]
    command = [*program, "ring_keras.launch", "-np", str(_RANKS), "--bind-to", "cores"]
    command += [*program, module, "--rank", *sys.argv[1:]]
    subprocess.run(command, check=True)
    return False, options.quick


def compare(
    what: str, measure: Callable[[bool], float], pairs: int, unit: float, name: str
) -> None:
    """Measures with and without, in another order each time; all ranks do the same.

    Args:
        what: Is measured.
        measure: Does it with (True) or without (False); seconds.
        pairs: How often.
        unit: How many of those that are printed a second has.
        name: What they are called.
    """
    for on in (True, False):  # Not the first time.
        measure(on)
    with_it, without, differences = [], [], []
    for pair in range(pairs):
        times = {}
        for on in (True, False) if pair % 2 else (False, True):
            _native.barrier("before")
            times[on] = measure(on) * unit
        with_it.append(times[True])
        without.append(times[False])
        differences.append(times[True] - times[False])
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
