"""What it costs that the engine notes every collective.

    python -m benchmarks.recording [--quick]

Two ranks do the same with and without, in turn, many times; what is printed is the
median of the differences, and the quartiles. Let nothing else run meanwhile.
"""

from __future__ import annotations

import functools
import math
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

import ring_keras as ring
from benchmarks.in_turn import compare, started_ranks
from benchmarks.ranks.models import custom_loop, fit_loop
from ring_keras import _libraries, _native
from ring_keras.training.uneven_batches import real_example_count

_CALLS = 2000
_LOOKS = 200
_ROUNDS = 100
_STEPS = 40


def main() -> None:
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(2)
    is_rank, quick = started_ranks("benchmarks.recording", __doc__ or "")
    if not is_rank:
        return
    pairs = 15 if quick else 100
    compare("4-byte allreduce", _ways(_allreduces), pairs, 1e9, "ns")
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
        ways = _ways(functools.partial(_median_step_s, loop))
        compare(f"deep narrow net, {name}", ways, max(5, pairs // 5), 1e6, "us")
    _native.set_recording(True)
    fit.run(5, _STEPS)
    if ring.rank() == 0:
        count = ring.stats().steps[-1].collectives
        print(
            f"deep narrow net, fit, counted: {count} collectives a step, and one look "
            f"at the data's iterator, which takes {1e6 * _look_s():.1f} us",
            flush=True,
        )


def _look_s() -> float:
    """Around the op that gets a batch, `fit` looks at the clock, and counts rows."""
    ops = _libraries.ops()

    @tf.function  # type: ignore[untyped-decorator]
    def looks(batch: tf.Tensor) -> tf.Tensor:
        for _ in range(_LOOKS):
            with tf.control_dependencies([batch]):
                since = ops.ring_keras_ticks()
            with tf.control_dependencies([since]):
                until = ops.ring_keras_ticks()
            rows = real_example_count((batch,))
            noted = ops.ring_keras_note_input(since=since, until=until, examples=rows)
            with tf.control_dependencies([noted]):
                batch = tf.identity(batch)
        return batch

    specification = tf.TensorSpec([None, 8])
    looks = looks.get_concrete_function(specification)
    batch = tf.ones([64, 8])

    least_s = math.inf
    for _ in range(_ROUNDS):
        _native.begin_steps()  # Forgets what was noted.
        start = time.perf_counter()
        looks(batch)
        least_s = min(least_s, (time.perf_counter() - start) / _LOOKS)
    return least_s


def _ways(measure: Callable[[bool], float]) -> dict[str, Callable[[], float]]:
    return {
        "without": functools.partial(measure, False),
        "with": functools.partial(measure, True),
    }


def _median_step_s(loop: Any, on: bool) -> float:
    _native.set_recording(on)
    times: list[float] = loop.run(5, _STEPS)
    return statistics.median(times)


def _allreduces(on: bool) -> float:
    _native.set_recording(on)
    array = np.ones(1, np.float32)
    start = time.perf_counter()
    for _ in range(_CALLS):
        _native.allreduce(array, "sum", "recording", array)
    return (time.perf_counter() - start) / _CALLS


if __name__ == "__main__":
    main()
