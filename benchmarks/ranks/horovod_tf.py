"""Horovod on its own TensorFlow, with Keras 2: ops, the tape, fit."""

from __future__ import annotations

from collections.abc import Sequence

import horovod
import horovod.tensorflow as hvd
import horovod.tensorflow.keras as hvd_keras
import tensorflow as tf

from benchmarks.ranks.agent import UnsupportedError, answer
from benchmarks.ranks.models import Loop, alone, custom_loop, fit_loop, train_operations
from benchmarks.ranks.tensors import limit_threads, tensor_operations

__all__ = ["serve"]


def serve(socket_path: str, rank: int, size: int) -> None:
    limit_threads()
    hvd.init()

    def reduce(tensors: Sequence[tf.Tensor]) -> Sequence[tf.Tensor]:
        # One op each, as its optimizer and its tape do; it joins them itself.
        return [
            hvd.allreduce(tensor, op=hvd.Sum, name=f"tensor{i}")
            for i, tensor in enumerate(tensors)
        ]

    def build(model: str, loop: str) -> Loop:
        if loop == "fit":
            start = hvd_keras.callbacks.BroadcastGlobalVariablesCallback(0)
            return fit_loop(
                model,
                rank,
                distribute=hvd_keras.DistributedOptimizer,
                callbacks=[start],
            )
        if loop != "custom":
            raise UnsupportedError
        return custom_loop(
            model,
            rank,
            tape_of=hvd.DistributedGradientTape,
            start=lambda variables: hvd.broadcast_variables(variables, root_rank=0),
        )

    operations = tensor_operations(rank, size, reduce)
    operations |= train_operations(build)
    operations["train_alone"] = train_operations(alone(rank))["train"]
    version = f"Horovod {horovod.__version__}, TensorFlow {tf.__version__}"
    answer(socket_path, rank, version, operations)
