"""What all modules that take the place of one of Horovod's have in common."""

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
from ring_keras.values.reduce_op import Adasum, Average, Sum

__all__ = [
    "Adasum",
    "Average",
    "Compression",
    "ProcessSet",
    "Sum",
    "add_process_set",
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
    "local_rank",
    "local_size",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "rank",
    "remove_process_set",
    "rocm_built",
    "shutdown",
    "size",
    "start_timeline",
    "stop_timeline",
]
