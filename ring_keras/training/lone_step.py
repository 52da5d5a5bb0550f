"""A step of a job that has one rank, where nothing is reduced.

The engine knows of steps by their collectives. So that `ring.stats()`, and with it
TensorBoard's page, shows one rank as it shows many, such a step has one of one number.
"""

from typing import Any

import tensorflow as tf

from ring_keras import _libraries
from ring_keras.job.topology import size
from ring_keras.ops.grouped_allreduce import allreduce_start, allreduce_wait
from ring_keras.ops.step import one_step
from ring_keras.training.uneven_batches import example_count

__all__ = ["end_lone_step"]


def end_lone_step(data: Any, result: Any, *, compiled: bool) -> None:
    """Tells the engine that a step is over; of a job of one rank, else nothing.

    Args:
        data: The step's batch.
        result: What the step returns, and so computes before.
        compiled: Whether XLA compiles it.
    """
    if size() > 1 or (compiled and not _libraries.has_xla_kernels()):
        return
    leaves = tf.nest.flatten(result, expand_composites=True)
    computed = [leaf for leaf in leaves if leaf is not None]
    with tf.control_dependencies(computed), tf.device("CPU:0"), one_step():
        number = tf.zeros([1])
        allreduce_wait(
            allreduce_start(
                [number],
                name="train_step/alone",
                weight=example_count(data),
                wait_follows=True,
            )
        )
