"""Takes the place of `horovod.tensorflow`."""

from typing import Any

import keras

from ring_keras.horovod._absent import absent, refuse_unless_default
from ring_keras.horovod._basics import (
    ccl_built,
    cuda_built,
    ddl_built,
    gloo_built,
    gloo_enabled,
    init,
    is_homogeneous,
    mpi_built,
    mpi_enabled,
    mpi_threads_supported,
    nccl_built,
    rocm_built,
    shutdown,
    start_timeline,
    stop_timeline,
)
from ring_keras.horovod._collectives import (
    allgather,
    allreduce,
    alltoall,
    broadcast,
    grouped_allgather,
    grouped_allreduce,
    grouped_reducescatter,
    reducescatter,
)
from ring_keras.horovod._compression import Compression
from ring_keras.horovod._gradients import (
    DistributedGradientTape,
    Groups,
    PartialDistributedGradientTape,
    distributed_optimizer,
)
from ring_keras.horovod._job_ops import (
    barrier,
    join,
    local_rank_op,
    local_size_op,
    process_set_included_op,
    rank_op,
    size_op,
)
from ring_keras.horovod._keras_2 import is_tf_keras
from ring_keras.horovod._variables import (
    BroadcastGlobalVariablesHook,
    allgather_object,
    broadcast_,
    broadcast_global_variables,
    broadcast_object,
    broadcast_object_fn,
    broadcast_variables,
)
from ring_keras.horovod.tensorflow import compression as compression
from ring_keras.horovod.tensorflow import elastic
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
from ring_keras.layers import SyncBatchNormalization as _SyncBatchNormalization
from ring_keras.ops.reduce_op import Adasum, Average, Max, Min, Product, ReduceOp, Sum

__all__ = [
    "Adasum",
    "Average",
    "BroadcastGlobalVariablesHook",
    "Compression",
    "DistributedGradientTape",
    "DistributedOptimizer",
    "Max",
    "Min",
    "PartialDistributedGradientTape",
    "ProcessSet",
    "Product",
    "Sum",
    "SyncBatchNormalization",
    "add_process_set",
    "allgather",
    "allgather_object",
    "allreduce",
    "alltoall",
    "barrier",
    "broadcast",
    "broadcast_",
    "broadcast_global_variables",
    "broadcast_object",
    "broadcast_object_fn",
    "broadcast_variables",
    "ccl_built",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "elastic",
    "global_process_set",
    "gloo_built",
    "gloo_enabled",
    "grouped_allgather",
    "grouped_allreduce",
    "grouped_reducescatter",
    "init",
    "is_homogeneous",
    "is_initialized",
    "join",
    "local_rank",
    "local_rank_op",
    "local_size",
    "local_size_op",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "process_set_included_op",
    "rank",
    "rank_op",
    "reducescatter",
    "remove_process_set",
    "rocm_built",
    "shutdown",
    "size",
    "size_op",
    "start_timeline",
    "stop_timeline",
]


def DistributedOptimizer(  # noqa: N802  Named like the class it stands for.
    optimizer: Any,
    name: str | None = None,
    use_locking: bool = False,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    backward_passes_per_step: int = 1,
    op: ReduceOp = Average,
    gradient_predivide_factor: float = 1.0,
    average_aggregated_gradients: bool = False,
    num_groups: int = 0,
    groups: Groups = None,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
) -> Any:
    """See `ring_keras.DistributedOptimizer`."""
    return distributed_optimizer(
        optimizer,
        name=name,
        use_locking=use_locking,
        compression=compression,
        sparse_as_dense=sparse_as_dense,
        backward_passes_per_step=backward_passes_per_step,
        op=op,
        gradient_predivide_factor=gradient_predivide_factor,
        average_aggregated_gradients=average_aggregated_gradients,
        num_groups=num_groups,
        groups=groups,
        process_set=process_set,
        scale_local_gradients=scale_local_gradients,
    )


def SyncBatchNormalization(  # noqa: N802
    fused: bool = False, **kwargs: Any
) -> keras.layers.BatchNormalization:
    """See `ring_keras.layers.SyncBatchNormalization`."""
    if is_tf_keras():
        absent("SyncBatchNormalization for Keras 2", "Use Keras 3.")
    refuse_unless_default(
        "fused", fused, False, "Statistics of all ranks are needed in the middle."
    )
    return _SyncBatchNormalization(**kwargs)
