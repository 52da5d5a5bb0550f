"""ring_keras in TensorFlow: ops, a custom loop, fit."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import tensorflow as tf

import ring_keras as ring
from benchmarks.ranks.agent import UnsupportedError, answer
from benchmarks.ranks.models import Loop, custom_loop, fit_loop, train_operations
from benchmarks.ranks.tensors import limit_threads, tensor_operations
from ring_keras.optimizers.gradient_reducer import GradientReducer
from ring_keras.optimizers.reduction_options import ReductionOptions

__all__ = ["serve"]


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

    operations = tensor_operations(rank, size, reduce)
    operations |= train_operations(build, build_sharded)
    version = f"{ring.__version__}, TensorFlow {tf.__version__}"
    answer(socket_path, rank, version, operations)
    ring.shutdown("the benchmark ended")
