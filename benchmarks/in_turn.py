"""Comparing ways of doing the same, in turn, on the ranks of one job."""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence

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
    what: str,
    ways: Mapping[str, Callable[[], float]],
    rounds: int,
    unit: float,
    name: str,
) -> None:
    """Measures each way in turn, in another order each round; all ranks do the same.

    Args:
        what: Is measured.
        ways: How it is done; each returns seconds. The others are compared with the
            first.
        rounds: How often.
        unit: How many of those that are printed a second has.
        name: What they are called.
    """
    for way in ways.values():  # Not the first time.
        way()
    times: dict[str, list[float]] = {label: [] for label in ways}
    for round_number in range(rounds):
        labels = list(ways)
        for label in labels if round_number % 2 else reversed(labels):
            _native.barrier("before")
            times[label].append(ways[label]() * unit)
    if ring.rank() == 0:
        _report(what, times, name)


def _report(what: str, times: Mapping[str, Sequence[float]], name: str) -> None:
    first, *others = times
    base = statistics.median(times[first])
    print(f"{what}: {base:.1f} {name} {first}", flush=True)
    for label in others:
        pairs = zip(times[label], times[first], strict=True)
        low, middle, high = _quartiles([one - other for one, other in pairs])
        print(
            f"    {label}: {statistics.median(times[label]):.1f} {name}; difference "
            f"{middle:+.1f} ({low:+.1f} to {high:+.1f}) {name}, "
            f"{100 * middle / base:+.2f} %",
            flush=True,
        )


def _quartiles(values: Sequence[float]) -> tuple[float, float, float]:
    low, middle, high = statistics.quantiles(values, n=4)
    return low, middle, high
