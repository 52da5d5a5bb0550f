"""Takes the place of `horovod.tensorflow`."""

from typing import Any

import keras

from ring_keras.horovod import _names
from ring_keras.horovod._absent import absent, refuse_unless_default
from ring_keras.horovod._basics import is_homogeneous
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
from ring_keras.horovod._names import *  # noqa: F403
from ring_keras.horovod._variables import (
    BroadcastGlobalVariablesHook,
    allgather_object,
    broadcast_,
    broadcast_object,
    broadcast_object_fn,
    broadcast_variables,
)
from ring_keras.horovod.tensorflow import compression as compression
from ring_keras.horovod.tensorflow import elastic
from ring_keras.job.process_set import ProcessSet, global_process_set
from ring_keras.layers import SyncBatchNormalization as _SyncBatchNormalization
from ring_keras.values.reduce_op import Average, Max, Min, Product, ReduceOp

__all__ = [
    *_names.__all__,
    "BroadcastGlobalVariablesHook",
    "DistributedGradientTape",
    "DistributedOptimizer",
    "Max",
    "Min",
    "PartialDistributedGradientTape",
    "Product",
    "SyncBatchNormalization",
    "allgather",
    "allgather_object",
    "allreduce",
    "alltoall",
    "barrier",
    "broadcast",
    "broadcast_",
    "broadcast_object",
    "broadcast_object_fn",
    "broadcast_variables",
    "elastic",
    "grouped_allgather",
    "grouped_allreduce",
    "grouped_reducescatter",
    "is_homogeneous",
    "join",
    "local_rank_op",
    "local_size_op",
    "process_set_included_op",
    "rank_op",
    "reducescatter",
    "size_op",
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
