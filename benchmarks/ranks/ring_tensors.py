"""ring_keras in TensorFlow: ops, a custom loop, fit."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

import ring_keras as ring
from benchmarks.ranks.agent import UnsupportedError, answer
from benchmarks.ranks.models import Loop, custom_loop, fit_loop, train_operations
from benchmarks.ranks.tensors import limit_threads, tensor_operations
from ring_keras.optimizers.gradient_reducer import GradientReducer
from ring_keras.optimizers.reduction_options import ReductionOptions

__all__ = ["serve"]


def _met(gradients: Sequence[tf.Tensor]) -> Sequence[tf.Tensor]:
    """The same, when all ranks have theirs, which stay their own."""
    with tf.control_dependencies(gradients):
        met = ring.allreduce(tf.zeros([]), name="met")
    with tf.control_dependencies([met]):
        return [tf.identity(gradient) for gradient in gradients]


def _meeting(optimizer: Any) -> Any:
    """An optimizer of Keras's that waits for the other ranks, and updates alone."""
    kind: Any = type(optimizer)

    class Meeting(kind):
        def apply(self, grads: Any, trainable_variables: Any = None) -> Any:
            return super().apply(_met(list(grads)), trainable_variables)

    return Meeting.from_config(optimizer.get_config())


def serve(socket_path: str, rank: int, size: int) -> None:
    limit_threads()
    ring.init()
    reducer = GradientReducer(ReductionOptions(op=ring.Sum))

    def reduce(tensors: Sequence[tf.Tensor]) -> Sequence[tf.Tensor]:
        if len(tensors) == 1:
            return [ring.allreduce(tensors[0], ring.Sum)]
        # As the optimizer and the tape do.
        return reducer.reduce(tensors, [f"tensor{i}" for i in range(len(tensors))])

    def build(model: str, loop: str) -> Loop:
        if loop in ("fit", "compiled"):
            return fit_loop(
                model,
                rank,
                distribute=ring.DistributedOptimizer,
                compiled=loop == "compiled",
            )
        if loop != "custom":
            raise UnsupportedError
        return custom_loop(
            model,
            rank,
            tape_of=ring.DistributedGradientTape,
            start=ring.broadcast_variables,
        )

    def build_sharded(model: str, loop: str) -> Loop:
        if loop not in ("fit", "compiled"):
            raise UnsupportedError
        return fit_loop(
            model,
            rank,
            distribute=functools.partial(ring.DistributedOptimizer, shard_state=True),
            compiled=loop == "compiled",
        )

    def build_meeting(model: str, loop: str) -> Loop:
        """What the shortest steps cannot do without."""
        if model != "deep":
            raise UnsupportedError
        if loop == "fit":
            return fit_loop(model, rank, distribute=_meeting)
        return custom_loop(model, rank, average=_met)

    operations = tensor_operations(rank, size, reduce)
    states = {"sharded": build_sharded, "meeting": build_meeting}
    operations |= train_operations(build, states)
    version = f"{ring.__version__}, TensorFlow {tf.__version__}"
    answer(socket_path, rank, version, operations)
    ring.shutdown("the benchmark ended")
