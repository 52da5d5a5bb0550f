"""Takes the place of `horovod.torch`, for PyTorch on CPUs.

It needs no library but the engine: tensors share their memory with NumPy's arrays.
"""

from ring_keras.config import prefer_keras_backend

# Before anything else is imported. Keras need not be there. If it is, it may say
# otherwise.
prefer_keras_backend("torch", "as ring_keras.horovod.torch was imported")

from ring_keras.horovod._basics import (
    ccl_built,
    cuda_built,
    ddl_built,
    gloo_built,
    gloo_enabled,
    is_homogeneous,
    mpi_built,
    mpi_enabled,
    mpi_threads_supported,
    nccl_built,
    rocm_built,
    start_timeline,
    stop_timeline,
)
from ring_keras.horovod.torch import elastic, mpi_ops
from ring_keras.horovod.torch.compression import Compression
from ring_keras.horovod.torch.functions import (
    allgather_object,
    broadcast_object,
    broadcast_optimizer_state,
    broadcast_parameters,
)
from ring_keras.horovod.torch.mpi_ops import *  # noqa: F403
from ring_keras.horovod.torch.optimizer import DistributedOptimizer
from ring_keras.horovod.torch.sync_batch_norm import SyncBatchNorm
from ring_keras.job.process_set import (
    ProcessSet,
    add_process_set,
    global_process_set,
    remove_process_set,
)

__all__ = [
    *mpi_ops.__all__,
    "Compression",
    "DistributedOptimizer",
    "ProcessSet",
    "SyncBatchNorm",
    "add_process_set",
    "allgather_object",
    "broadcast_object",
    "broadcast_optimizer_state",
    "broadcast_parameters",
    "ccl_built",
    "cuda_built",
    "ddl_built",
    "elastic",
    "global_process_set",
    "gloo_built",
    "gloo_enabled",
    "is_homogeneous",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "remove_process_set",
    "rocm_built",
    "start_timeline",
    "stop_timeline",
]
