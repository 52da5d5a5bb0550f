"""What `horovod.keras` and `horovod.tensorflow.keras` have in common."""

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
from ring_keras.horovod._compression import Compression
from ring_keras.horovod._gradients import (
    PartialDistributedOptimizer,
    load_model,
)
from ring_keras.horovod._keras_helpers import allgather, broadcast, reducescatter
from ring_keras.horovod._variables import broadcast_global_variables
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
from ring_keras.ops.reduce_op import Adasum, Average, Sum

__all__ = [
    "Adasum",
    "Average",
    "Compression",
    "PartialDistributedOptimizer",
    "ProcessSet",
    "Sum",
    "add_process_set",
    "allgather",
    "broadcast",
    "broadcast_global_variables",
    "ccl_built",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
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
