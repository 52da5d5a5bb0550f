"""What `shard_state=True` costs a step of `fit` between hosts.

    sudo python -m benchmarks.hosts.sharded [--rounds 11]

Makes 2 network namespaces with links of 1 Gbit/s, and removes them. One rank on each,
and two, train the MLP of 6.3 million weights with Adam, with and without, in turn in
the same processes. Printed are the median of a step and that of the differences of
neighbouring turns, with the quartiles. Let nothing else run meanwhile.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import os
import statistics
import sys
import tempfile
from pathlib import Path

import tensorflow as tf

import ring_keras as ring
from benchmarks.in_turn import compare
from benchmarks.ranks.models import Loop, fit_loop
from benchmarks.ranks.tensors import limit_threads

_MODEL = "mlp+adam"
_STEPS = 12
_LIMIT_S = 900


def main() -> None:
    """Measures on each number of ranks."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--rank", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank is not None:
        with options.rank.open("a") as file, contextlib.redirect_stdout(file):
            _measure(options.rounds)
        return
    if os.geteuid() != 0:
        parser.error("making network namespaces needs root")
    # Here: both need what the tests need.
    from benchmarks.scaling.launch import Network, run_on_hosts

    for per_host in (1, 2):
        with Network(2, "1gbit") as network, tempfile.TemporaryDirectory() as directory:
            found = Path(directory) / "found"
            program = ["-m", "benchmarks.hosts.sharded", "--rank", str(found)]
            program += ["--rounds", str(options.rounds)]
            run_on_hosts(network, 2, per_host, program, dict(os.environ), _LIMIT_S)
            print(f"2 hosts, {per_host} a host: {found.read_text()}", flush=True)


def _measure(rounds: int) -> None:
    limit_threads()
    ring.init()
    ways = {}
    for name, shard_state in (("whole", False), ("shard_state", True)):
        tf.keras.utils.set_random_seed(1)
        distribute = functools.partial(
            ring.DistributedOptimizer, shard_state=shard_state
        )
        loop = fit_loop(_MODEL, ring.rank(), distribute=distribute)
        ways[name] = functools.partial(_step_s, loop)
    compare(f"{_MODEL}, {ring.size()} ranks", ways, rounds, 1e3, "ms")
    sys.stdout.flush()


def _step_s(loop: Loop) -> float:
    """The mean, as what is under way when a step ends is done in the next one.

    Without the first ones, before which the ranks compare and send what is common.
    """
    return statistics.mean(loop.run(2, _STEPS))


if __name__ == "__main__":
    main()
