"""The wires that leave residuals, by ops of ours and by TensorFlow's."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from support.far_apart import Arrays

import ring_keras as ring
from ring_keras.ops.step import one_step
from ring_keras.optimizers.graph_wires import GraphInt8, GraphTopK
from ring_keras.optimizers.native_wires import NativeInt8, NativeTopK
from ring_keras.optimizers.wires import average_thinly, thin_wire

BOTH = {"int8": (NativeInt8, GraphInt8), "top-k": (NativeTopK, GraphTopK)}

# Blocks across variables, and blocks that are not full.
SHAPES = [(40, 33), (), (5,), (0, 3), (2, 3, 257)]


def arrays_of(kind: str, seed: list[int]) -> Arrays:
    """Of each shape, and of one kind."""
    random = np.random.default_rng(seed)
    arrays = [random.normal(size=shape) for shape in SHAPES]
    if kind == "ties":
        return [np.float32(np.round(one)) for one in arrays]
    if kind == "zeros":
        return [np.copysign(np.float32(0), np.float32(one)) for one in arrays]
    # Down to the smallest numbers that there are, and beyond those.
    exponents = (-46, -36) if kind == "small" else (-46, 37)
    arrays = [
        np.float32(one * 10.0 ** random.integers(*exponents, size=one.shape))
        for one in arrays
    ]
    arrays[0][random.random(size=arrays[0].shape) < 0.1] = -0.0
    if kind == "not finite":
        arrays[0][3, 1:4] = np.nan, np.inf, -np.inf
        arrays[4][1, 2, 100] = -np.nan
    return arrays


KINDS = ("all sizes", "small", "ties", "zeros", "not finite")


def bits_of(arrays: tf.Tensor) -> list[bytes]:
    """Theirs. Which NaN a sum of two is, TensorFlow's own ops do not say."""
    copies = [np.array(one) for one in arrays]
    for one in copies:
        one[np.isnan(one)] = np.nan
    return [one.tobytes() for one in copies]


def both_ways_worker(wire):
    """The bits of averages and residuals of each kind: of each way, run and traced."""
    share = tf.constant([0.3, 0.7, 0.0][ring.rank()])
    inputs = [
        [[*map(tf.constant, arrays_of(kind, [ring.rank(), n]))] for n in range(2)]
        for kind in KINDS
    ]
    found = []
    for way in BOTH[wire]:

        def average(values, residuals, thin=way):
            with one_step():
                return average_thinly(
                    thin(), values, residuals, share, ring.global_process_set
                )

        # Threads of functions take the smallest numbers for zeros.
        for run in (average, tf.function(average)):
            found.append([[*map(bits_of, run(*of_kind))] for of_kind in inputs])
    return found


@pytest.mark.parametrize(("size", "wire"), [(3, "int8"), (2, "top-k")])
def test_our_ops_give_the_bits_of_those_of_tensorflow(rank_pool, size, wire):
    results = rank_pool(size).run(both_ways_worker, args=(wire,))

    for run, traced, run_by_tensorflow, traced_by_tensorflow in results:
        for number, kind in enumerate(KINDS):
            assert run[number] == run_by_tensorflow[number], kind
            assert traced[number] == traced_by_tensorflow[number], kind


def chosen_worker():
    """Which way is taken where."""
    chosen = {"eager": type(thin_wire("int8")).__name__}

    def choose(name):
        def branch():
            chosen[name] = type(thin_wire("int8")).__name__
            return tf.constant(0)

        # A meeting is in a branch.
        return tf.cond(tf.random.uniform([]) < 2, branch, lambda: tf.constant(0))

    tf.function(lambda: choose("function"))()
    tf.function(lambda: choose("xla"), jit_compile=True)()
    return chosen


def test_xla_compiles_those_of_tensorflow(rank_pool):
    (chosen,) = rank_pool(1).run(chosen_worker)

    native = "GraphInt8" if tf.config.list_physical_devices("GPU") else "NativeInt8"
    assert chosen == {"eager": native, "function": native, "xla": "GraphInt8"}


def strange_message_worker():
    """A value for a place that is none, which may not be written."""
    with pytest.raises(tf.errors.InvalidArgumentError, match="does not have"):
        NativeTopK().end(
            tf.constant([[[0, 40], [0, 0]]]),
            [tf.TensorShape([32]), tf.TensorShape([5])],
            ring.global_process_set,
        )
    with pytest.raises(tf.errors.InvalidArgumentError, match="not the shape"):
        NativeInt8().end(
            tf.zeros([1, 260], tf.int8),
            [tf.TensorShape([257])],
            ring.global_process_set,
        )


def test_no_message_writes_elsewhere(rank_pool):
    rank_pool(1).run(strange_message_worker)
