"""The engine under torch.distributed: its back end `ring`, on CPUs and NVIDIA GPUs.

Examples:
    >>> import ring_keras.torch
    >>> dist.init_process_group("ring", init_method="ring://")
    >>> model = DistributedDataParallel(model)

Importing it registers the back end and the rendezvous `ring://`. The ranks are those of
`ring_keras.init()`, which creating the process group calls if the program has not:
`ringrun`, `torchrun`, `srun`, `mpirun` and others start them. Under torchrun
`init_method` can be left out.
"""

from typing import NoReturn

from ring_keras.config import prefer_keras_backend

# Keras need not be there. If it is, it may say otherwise.
prefer_keras_backend("torch", "as ring_keras.torch was imported")

from ring_keras.torch.monitored_barrier import monitored_barrier
from ring_keras.torch.registration import register

__all__ = ["monitored_barrier"]

register()


def __getattr__(name: str) -> NoReturn:
    """Says what this module is to whoever looks for Horovod's names in it."""
    raise AttributeError(
        f"module {__name__!r} has no attribute {name!r}: it registers the back end "
        "`ring` of torch.distributed. Horovod's names for PyTorch are in "
        "ring_keras.horovod.torch"
    )
