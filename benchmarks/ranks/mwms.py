"""TensorFlow's MultiWorkerMirroredStrategy, and the op below it."""

from __future__ import annotations

import itertools
import os
from collections.abc import Sequence

import tensorflow as tf

from benchmarks.ranks.agent import Operation, Request, UnsupportedError, answer
from benchmarks.ranks.models import Loop, custom_loop, fit_loop, train_operations
from benchmarks.ranks.tensors import limit_threads, tensor_operations

__all__ = ["serve"]


def serve(socket_path: str, rank: int, size: int) -> None:
    limit_threads()
    legacy_keras = os.environ.get("TF_USE_LEGACY_KERAS") == "1"
    strategy = tf.distribute.MultiWorkerMirroredStrategy(
        communication_options=tf.distribute.experimental.CommunicationOptions(
            implementation=tf.distribute.experimental.CommunicationImplementation.RING
        )
    )

    def reduce(tensors: Sequence[tf.Tensor]) -> Sequence[tf.Tensor]:
        def replica() -> Sequence[tf.Tensor]:
            context = tf.distribute.get_replica_context()
            # It wants to know where they are, which those of a graph do not say.
            placed = [tf.identity(tensor) for tensor in tensors]
            reduced: Sequence[tf.Tensor] = context.all_reduce("SUM", placed)
            return reduced

        reduced: Sequence[tf.Tensor] = strategy.run(replica)
        return reduced

    def average(gradients: Sequence[tf.Tensor]) -> Sequence[tf.Tensor]:
        return [gradient / size for gradient in reduce(gradients)]

    # Another for each tensor of each graph, the same on every rank.
    instance_keys = itertools.count(1000)

    def collective(tensors: Sequence[tf.Tensor]) -> Sequence[tf.Tensor]:
        return [
            tf.raw_ops.CollectiveReduceV2(
                input=tensor,
                group_size=size,
                group_key=1000,
                instance_key=next(instance_keys),
                ordering_token=[],
                merge_op="Add",
                final_op="Id",
                communication_hint="RING",
            )
            for tensor in tensors
        ]

    def build(model: str, loop: str) -> Loop:
        if loop == "fit":
            if not legacy_keras:
                raise UnsupportedError  # Keras 3's does not take this strategy.
            return fit_loop(model, rank, scope=strategy.scope())
        if loop != "custom":
            raise UnsupportedError
        return custom_loop(model, rank, average=average)

    by_strategy = tensor_operations(rank, size, reduce)
    by_op = tensor_operations(rank, size, collective)

    def either(name: str) -> Operation:
        def measure(request: Request) -> list[float]:
            chosen = by_op if request.text("by") == "op" else by_strategy
            return chosen[name](request)

        return measure

    operations = {name: either(name) for name in by_strategy}
    operations |= train_operations(build)
    answer(
        socket_path,
        rank,
        f"TensorFlow {tf.__version__}{', tf_keras' if legacy_keras else ''}",
        operations,
    )
