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
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import tensorflow as tf

import ring_keras as ring
from benchmarks.in_turn import compare
from benchmarks.ranks.models import build_batch, build_model, build_optimizer, loss_of
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
    ways = {
        name: functools.partial(_step_s, *_prepare(shard_state))
        for name, shard_state in (("whole", False), ("shard_state", True))
    }
    compare(f"{_MODEL}, {ring.size()} ranks", ways, rounds, 1e3, "ms")
    sys.stdout.flush()


def _prepare(shard_state: bool) -> tuple[Any, tf.data.Dataset]:
    tf.keras.utils.set_random_seed(1)
    model = build_model(_MODEL)
    optimizer = build_optimizer(_MODEL)
    distributed = ring.DistributedOptimizer(optimizer, shard_state=shard_state)
    model.compile(distributed, loss=loss_of())
    return model, tf.data.Dataset.from_tensors(
        build_batch(_MODEL, ring.rank())
    ).repeat()


def _step_s(model: Any, data: tf.data.Dataset) -> float:
    begin = time.perf_counter()
    model.fit(data, steps_per_epoch=_STEPS, verbose=0)
    return (time.perf_counter() - begin) / _STEPS


if __name__ == "__main__":
    main()
