"""Takes the place of `horovod.keras`."""

from typing import Any

import keras
import tensorflow as tf

import ring_keras as ring
from ring_keras.horovod._basics import (
    ccl_built,
    cuda_built,
    ddl_built,
    gloo_built,
    gloo_enabled,
    init,
    mpi_built,
    mpi_enabled,
    mpi_threads_supported,
    nccl_built,
    rocm_built,
    shutdown,
    start_timeline,
    stop_timeline,
)
from ring_keras.horovod._collectives import broadcast_global_variables, to_op
from ring_keras.horovod._gradients import (
    Groups,
    PartialDistributedOptimizer,
    distributed_optimizer,
    load_model,
)
from ring_keras.horovod._keras_helpers import allgather, broadcast, reducescatter
from ring_keras.horovod.keras import callbacks, elastic
from ring_keras.job.process_set import (
    ProcessSet,
    add_process_set,
    global_process_set,
    remove_process_set,
)
from ring_keras.job.topology import (
    cross_rank,
    cross_size,
    is_initialized,
    local_rank,
    local_size,
    rank,
    size,
)
from ring_keras.ops.compression import Compression
from ring_keras.ops.reduce_op import Adasum, Average, ReduceOp, Sum

__all__ = [
    "Adasum",
    "Average",
    "Compression",
    "DistributedOptimizer",
    "PartialDistributedOptimizer",
    "ProcessSet",
    "Sum",
    "add_process_set",
    "allgather",
    "allreduce",
    "broadcast",
    "broadcast_global_variables",
    "callbacks",
    "ccl_built",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "elastic",
    "global_process_set",
    "gloo_built",
    "gloo_enabled",
    "init",
    "is_initialized",
    "load_model",
    "local_rank",
    "local_size",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "rank",
    "reducescatter",
    "remove_process_set",
    "rocm_built",
    "shutdown",
    "size",
    "start_timeline",
    "stop_timeline",
]


def DistributedOptimizer(  # noqa: N802  Named like the class it stands for.
    optimizer: Any,
    name: str | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Compression = Compression.none,
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
    compression: Compression = Compression.none,
) -> tf.Tensor:
    """See `ring_keras.allreduce`; `op` counts where it is given."""
    return ring.allreduce(
        value,
        to_op(op, average if op is None else None),
        name=name,
        prescale_factor=prescale_factor,
        postscale_factor=postscale_factor,
        compression=compression,
    )
