"""Takes the place of `horovod.keras`."""

from typing import Any

import keras

from ring_keras.horovod import _collectives as collectives
from ring_keras.horovod import _keras_names
from ring_keras.horovod._compression import Compression
from ring_keras.horovod._gradients import Groups, distributed_optimizer
from ring_keras.horovod._keras_names import *  # noqa: F403
from ring_keras.horovod._op import to_op
from ring_keras.horovod.keras import callbacks, elastic
from ring_keras.job.process_set import ProcessSet, global_process_set
from ring_keras.values.reduce_op import Average, ReduceOp

__all__ = [
    *_keras_names.__all__,
    "DistributedOptimizer",
    "allreduce",
    "callbacks",
    "elastic",
]


def DistributedOptimizer(  # noqa: N802  Named like the class it stands for.
    optimizer: Any,
    name: str | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    gradient_predivide_factor: float = 1.0,
    op: ReduceOp = Average,
    num_groups: int = 0,
    groups: Groups = None,
    backward_passes_per_step: int = 1,
    average_aggregated_gradients: bool = False,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
) -> keras.optimizers.Optimizer:
    """See `ring_keras.DistributedOptimizer`."""
    return distributed_optimizer(
        optimizer,
        compression=compression,
        sparse_as_dense=sparse_as_dense,
        gradient_predivide_factor=gradient_predivide_factor,
        op=op,
        num_groups=num_groups,
        groups=groups,
        backward_passes_per_step=backward_passes_per_step,
        average_aggregated_gradients=average_aggregated_gradients,
        process_set=process_set,
        scale_local_gradients=scale_local_gradients,
    )


def allreduce(
    value: Any,
    name: str | None = None,
    average: bool = True,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    op: ReduceOp | None = None,
    compression: Any = Compression.none,
) -> Any:
    """See `ring_keras.allreduce`; `op` counts where it is given."""
    return collectives.allreduce(
        value,
        op=to_op(op, average if op is None else None),
        name=name,
        prescale_factor=prescale_factor,
        postscale_factor=postscale_factor,
        compression=compression,
    )
